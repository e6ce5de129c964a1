"""Collectives as plain functions of arrays, for programs that do not hold a communicator.

Each takes an array (or anything np.asarray takes), an optional communicator (an mpiopt one, an
mpi4py one, or None for the world), and returns an array; `out` receives the result if given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from mpiopt.calls import op_named
from mpiopt.communicator import Communicator
from mpiopt.select import AUTO

_KEY = MPI.Comm.Create_keyval()


def communicator(comm: MPI.Intracomm | None = None) -> Communicator:
    """The mpiopt communicator that belongs to `comm`: itself, or one made once and kept with it."""
    if isinstance(comm, Communicator):
        return comm
    comm = MPI.COMM_WORLD if comm is None else comm
    kept = comm.Get_attr(_KEY)
    if not isinstance(kept, Communicator):
        kept = Communicator(comm)
        comm.Set_attr(_KEY, kept)
    return kept


def _array(x: ArrayLike) -> NDArray[Any]:
    return np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)


def allreduce(
    x: ArrayLike,
    comm: MPI.Intracomm | None = None,
    op: str = "sum",
    algorithm: str = AUTO,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Every rank's x, reduced element by element; the same bits on every rank.

    Example:
        >>> mean = mpiopt.allreduce(gradient) / comm.size
    """
    x = _array(x)
    out = np.empty_like(x) if out is None else out
    send = MPI.IN_PLACE if out is x else x
    communicator(comm).Allreduce(send, out, op_named(op), algorithm)
    return out


def reduce(
    x: ArrayLike,
    comm: MPI.Intracomm | None = None,
    op: str = "sum",
    root: int = 0,
    algorithm: str = AUTO,
    out: NDArray[Any] | None = None,
) -> NDArray[Any] | None:
    """The reduction of every rank's x at the root; None elsewhere."""
    x, ours = _array(x), communicator(comm)
    if ours.rank == root and out is None:
        out = np.empty_like(x)
    send = MPI.IN_PLACE if out is x and ours.rank == root else x
    ours.Reduce(send, out, op_named(op), root, algorithm)
    return out if ours.rank == root else None


def reduce_scatter(
    x: ArrayLike,
    comm: MPI.Intracomm | None = None,
    op: str = "sum",
    algorithm: str = AUTO,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """This rank's part of the reduction along the first axis, cut as np.array_split cuts it."""
    x, ours = _array(x), communicator(comm)
    rows = [len(part) for part in np.array_split(np.empty(len(x), dtype=bool), ours.size)]
    width = x.size // len(x) if len(x) else 1
    if out is None:
        out = np.empty((rows[ours.rank], *x.shape[1:]), dtype=x.dtype)
    ours.Reduce_scatter(x, out, [count * width for count in rows], op_named(op), algorithm)
    return out


def bcast(
    x: NDArray[Any], comm: MPI.Intracomm | None = None, root: int = 0, algorithm: str = AUTO
) -> NDArray[Any]:
    """Fill x with the root's; every rank passes an array of the same shape and dtype."""
    communicator(comm).Bcast(x, root, algorithm)
    return x


def allgather(
    x: ArrayLike,
    comm: MPI.Intracomm | None = None,
    algorithm: str = AUTO,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Every rank's x, stacked along a new first axis."""
    x, ours = _array(x), communicator(comm)
    out = np.empty((ours.size, *x.shape), dtype=x.dtype) if out is None else out
    ours.Allgather(x, out, algorithm)
    return out


def gather(
    x: ArrayLike, comm: MPI.Intracomm | None = None, root: int = 0, algorithm: str = AUTO
) -> NDArray[Any] | None:
    """Every rank's x stacked along a new first axis at the root; None elsewhere."""
    x, ours = _array(x), communicator(comm)
    out = np.empty((ours.size, *x.shape), dtype=x.dtype) if ours.rank == root else None
    ours.Gather(x, out, root, algorithm)
    return out


def scatter(
    x: ArrayLike | None,
    out: NDArray[Any],
    comm: MPI.Intracomm | None = None,
    root: int = 0,
    algorithm: str = AUTO,
) -> NDArray[Any]:
    """Fill out with this rank's slice of the root's x (first axis: one slice a rank)."""
    ours = communicator(comm)
    send = _array(x) if ours.rank == root and x is not None else None
    ours.Scatter(send, out, root, algorithm)
    return out


def alltoall(
    x: ArrayLike,
    comm: MPI.Intracomm | None = None,
    algorithm: str = AUTO,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Slice i of x goes to rank i; slice i of the result came from rank i."""
    x = _array(x)
    out = np.empty_like(x) if out is None else out
    communicator(comm).Alltoall(MPI.IN_PLACE if out is x else x, out, algorithm)
    return out


def barrier(comm: MPI.Intracomm | None = None, algorithm: str = AUTO) -> None:
    """Return once every rank has called."""
    communicator(comm).Barrier(algorithm)
