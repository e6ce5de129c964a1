"""Turns the arguments of a collective, as mpi4py takes them, into a call and its two buffers.

Every function returns None for what is left to MPI: derived datatypes, user-defined ops, dtypes
without a kernel, memory of a device. All ranks must come to the same answer, or some would wait in
MPI and others in mpiopt. Op and dtype are the same on all ranks of a correct program; that one rank
describes its part with a derived datatype and another does not is legal, rare, and not seen here
(see "sharp bits" in the documentation).
"""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpiopt.algorithms import algorithms
from mpiopt.buffers import Buffer, is_in_place, simple, vector
from mpiopt.errors import BadBufferError
from mpiopt.kernels.reduce import supported
from mpiopt.plan import Call
from mpiopt.select import AUTO, choose

_OPS = {
    "sum": MPI.SUM,
    "prod": MPI.PROD,
    "max": MPI.MAX,
    "min": MPI.MIN,
    "land": MPI.LAND,
    "lor": MPI.LOR,
    "lxor": MPI.LXOR,
    "band": MPI.BAND,
    "bor": MPI.BOR,
    "bxor": MPI.BXOR,
}
# NumPy's bool is for logic: MPI defines no arithmetic on it, nor bitwise ops.
_BOOL_OPS = ("land", "lor", "lxor")


class Prepared(NamedTuple):
    """A call with the buffers to run it on."""

    call: Call
    send: Buffer | None
    recv: Buffer | None


class Place(NamedTuple):
    """Who asks."""

    rank: int
    size: int
    shared: bool = False  # through rings


def op_named(name: str) -> MPI.Op:
    """The MPI op of a name such as "sum"."""
    if name not in _OPS:
        raise ValueError(f"unknown op {name!r}; one of {', '.join(_OPS)}")
    return _OPS[name]


def _op_name(op: Any) -> str | None:
    if isinstance(op, str):
        op = op_named(op)
    return next((name for name, known in _OPS.items() if known == op), None)


def _reducible(op: Any, dtype: np.dtype[Any]) -> str | None:
    name = _op_name(op)
    if name is None or not supported(name, dtype):
        return None
    return None if dtype.char == "?" and name not in _BOOL_OPS else name


def resolve(collective: str, algorithm: str, place: Place, nbytes: int) -> str:
    """The algorithm that runs, given the user's word."""
    if algorithm == AUTO:
        return choose(collective, place.size, nbytes, place.shared)
    if algorithm not in algorithms(collective):
        raise ValueError(
            f"{collective}: unknown algorithm {algorithm!r}; one of auto, mpi, "
            f"{', '.join(algorithms(collective))}"
        )
    return algorithm


def check_root(collective: str, place: Place, root: int) -> None:
    if not 0 <= root < place.size:
        raise ValueError(
            f"{collective}: rank {place.rank}: root {root} is not a rank of a communicator of size "
            f"{place.size}; roots are 0..{place.size - 1}"
        )


def _match(collective: str, place: Place, send: Buffer, recv: Buffer, blocks: int = 1) -> None:
    """Both buffers of one rank must agree; `blocks` is how many of the one make the other."""
    same_type = (
        send.dtype == recv.dtype
        if collective in ("allreduce", "reduce", "reduce_scatter")
        else send.dtype.itemsize == recv.dtype.itemsize
    )
    if not same_type or send.count != recv.count * blocks:
        raise BadBufferError(
            f"{collective}: rank {place.rank} has {send.count} {send.dtype} to send, and room for "
            f"{recv.count} x {blocks} {recv.dtype}; dtypes and lengths must match"
        )


def allreduce(place: Place, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str) -> Prepared | None:
    in_place = is_in_place(sendbuf)
    recv = simple(recvbuf, place.rank, True)
    send = None if in_place else simple(sendbuf, place.rank, False)
    if recv is None or (send is None and not in_place):
        return None
    if send is not None:
        _match("allreduce", place, send, recv)
    name = _reducible(op, recv.dtype)
    if name is None:
        return None
    algorithm = resolve("allreduce", algorithm, place, recv.count * recv.dtype.itemsize)
    counts = (recv.count,)
    return Prepared(
        Call("allreduce", algorithm, recv.dtype, counts, op=name, in_place=in_place), send, recv
    )


def reduce(
    place: Place, sendbuf: Any, recvbuf: Any, op: Any, root: int, algorithm: str
) -> Prepared | None:
    check_root("reduce", place, root)
    in_place = is_in_place(sendbuf)
    at_root = place.rank == root
    recv = simple(recvbuf, place.rank, True) if at_root else None
    send = None if in_place else simple(sendbuf, place.rank, False)
    data = recv if in_place else send
    if data is None or (at_root and recv is None):
        return None
    if send is not None and recv is not None:
        _match("reduce", place, send, recv)
    name = _reducible(op, data.dtype)
    if name is None:
        return None
    algorithm = resolve("reduce", algorithm, place, data.count * data.dtype.itemsize)
    counts = (data.count,)
    call = Call("reduce", algorithm, data.dtype, counts, op=name, root=root, in_place=in_place)
    return Prepared(call, send, recv)


def reduce_scatter_block(
    place: Place, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str
) -> Prepared | None:
    in_place = is_in_place(sendbuf)
    recv = simple(recvbuf, place.rank, True, place.size if in_place else 1)
    if recv is None:
        return None
    counts = (recv.count,) * place.size
    send = _copied(recv, sum(counts)) if in_place else simple(sendbuf, place.rank, False)
    if send is None:
        return None
    return _reduce_scatter(place, send, recv, counts, op, algorithm, in_place)


def reduce_scatter(
    place: Place, sendbuf: Any, recvbuf: Any, recvcounts: Any, op: Any, algorithm: str
) -> Prepared | None:
    in_place = is_in_place(sendbuf)
    recv = simple(recvbuf, place.rank, True)
    if recv is None:
        return None
    send = _copied(recv, recv.count) if in_place else simple(sendbuf, place.rank, False)
    if send is None:
        return None
    if recvcounts is None:
        if in_place:
            blocks = vector(recvbuf, place.rank, True, place.size)
            counts = blocks.counts if blocks is not None else ()
        else:
            return None  # only MPI's own can infer counts that other ranks hold
    else:
        counts = tuple(index(count) for count in recvcounts)
    if len(counts) != place.size or min(counts) < 0:
        raise BadBufferError(
            f"reduce_scatter: rank {place.rank}: recvcounts {list(counts)} must be {place.size} "
            "counts, one a rank, none negative"
        )
    needed = sum(counts) if in_place else counts[place.rank]
    if recv.count != needed:
        raise BadBufferError(
            f"reduce_scatter: rank {place.rank} has a receive buffer of {recv.count} elements, by "
            f"recvcounts it is {needed}; pass [recvbuf, {needed}] to use a part of a buffer"
        )
    return _reduce_scatter(place, send, recv, counts, op, algorithm, in_place)


def _reduce_scatter(
    place: Place,
    send: Buffer,
    recv: Buffer,
    counts: tuple[int, ...],
    op: Any,
    algorithm: str,
    in_place: bool,
) -> Prepared | None:
    """The call, once its buffers are known.

    In place, what lies behind the result must stay as it was, so what is sent is a copy; the work
    is done in it, so that it is all the memory that the call needs.
    """
    name = _reducible(op, recv.dtype)
    if name is None:
        return None
    total = sum(counts)
    if send.dtype != recv.dtype or send.count != total:
        raise BadBufferError(
            f"reduce_scatter: rank {place.rank} has {send.count} {send.dtype} to send, the ranks "
            f"receive {total} {recv.dtype} in all; dtypes and lengths must match"
        )
    algorithm = resolve("reduce_scatter", algorithm, place, total * recv.dtype.itemsize)
    call = Call("reduce_scatter", algorithm, recv.dtype, counts, op=name, in_place=in_place)
    return Prepared(call, send, recv)


def bcast(place: Place, buf: Any, root: int, algorithm: str) -> Prepared | None:
    check_root("bcast", place, root)
    data = simple(buf, place.rank, place.rank != root)
    if data is None:
        return None
    algorithm = resolve("bcast", algorithm, place, data.count * data.dtype.itemsize)
    return Prepared(Call("bcast", algorithm, data.dtype, (data.count,), root=root), None, data)


def allgather(
    place: Place, sendbuf: Any, recvbuf: Any, algorithm: str, uneven: bool = False
) -> Prepared | None:
    in_place = is_in_place(sendbuf)
    recv, counts = _blocks(recvbuf, place, True, uneven)
    send = None if in_place else simple(sendbuf, place.rank, False)
    if recv is None or (send is None and not in_place):
        return None
    if send is not None:
        _match_block("allgather", place, send, recv, counts)
    algorithm = resolve("allgather", algorithm, place, sum(counts) * recv.dtype.itemsize)
    # Other ranks may have other displacements, so no rank joins the blocks of the v-form.
    displs = recv.displs or (_side_by_side(counts) if uneven else None)
    call = Call("allgather", algorithm, recv.dtype, counts, in_place=in_place, recv_displs=displs)
    return Prepared(call, send, recv)


def gather(
    place: Place, sendbuf: Any, recvbuf: Any, root: int, algorithm: str, uneven: bool = False
) -> Prepared | None:
    check_root("gather", place, root)
    in_place = is_in_place(sendbuf)
    send = None if in_place else simple(sendbuf, place.rank, False)
    recv, counts = _blocks(recvbuf, place, True, uneven) if place.rank == root else (None, ())
    data = recv if in_place else send
    if data is None or (place.rank == root and recv is None):
        return None
    if send is not None and recv is not None:
        _match_block("gather", place, send, recv, counts)
    if not counts and send is not None:
        counts = _known(place, send.count, uneven)
    algorithm = _rooted("gather", algorithm, place, counts, data, uneven)
    displs = recv.displs if recv is not None else None
    call = Call(
        "gather", algorithm, data.dtype, counts, None, root, in_place, (), None, displs, uneven
    )
    return Prepared(call, send, recv)


def scatter(
    place: Place, sendbuf: Any, recvbuf: Any, root: int, algorithm: str, uneven: bool = False
) -> Prepared | None:
    check_root("scatter", place, root)
    in_place = is_in_place(recvbuf)
    recv = None if in_place else simple(recvbuf, place.rank, True)
    send, counts = _blocks(sendbuf, place, False, uneven) if place.rank == root else (None, ())
    data = send if in_place else recv
    if data is None or (place.rank == root and send is None):
        return None
    if send is not None and recv is not None:
        _match_block("scatter", place, recv, send, counts)
    if not counts and recv is not None:
        counts = _known(place, recv.count, uneven)
    algorithm = _rooted("scatter", algorithm, place, counts, data, uneven)
    displs = send.displs if send is not None else None
    call = Call(
        "scatter", algorithm, data.dtype, counts, None, root, in_place, (), displs, None, uneven
    )
    return Prepared(call, send, recv)


def alltoall(
    place: Place, sendbuf: Any, recvbuf: Any, algorithm: str, uneven: bool = False
) -> Prepared | None:
    recv, recv_counts = _blocks(recvbuf, place, True, uneven)
    if recv is None:
        return None
    if is_in_place(sendbuf):
        # What comes in overwrites what goes out, so what goes out is copied first.
        send: Buffer | None = _copied(recv, recv.count)
        counts = recv_counts
    else:
        send, counts = _blocks(sendbuf, place, False, uneven)
    if send is None:
        return None
    if (
        send.dtype.itemsize != recv.dtype.itemsize
        or counts[place.rank] != recv_counts[place.rank]
        or (not uneven and counts != recv_counts)
    ):
        raise BadBufferError(
            f"alltoall: rank {place.rank} sends {counts[place.rank]} {send.dtype} to itself and "
            f"receives {recv_counts[place.rank]} {recv.dtype}; dtypes and lengths must match"
        )
    algorithm = resolve("alltoall", algorithm, place, 0)
    displs = (send.displs, recv.displs)
    call = Call(
        "alltoall", algorithm, recv.dtype, counts, None, 0, False, recv_counts, *displs, uneven
    )
    return Prepared(call, send, recv)


def allgatherv(place: Place, sendbuf: Any, recvbuf: Any, algorithm: str) -> Prepared | None:
    return allgather(place, sendbuf, recvbuf, algorithm, uneven=True)


def gatherv(place: Place, sendbuf: Any, recvbuf: Any, root: int, algorithm: str) -> Prepared | None:
    return gather(place, sendbuf, recvbuf, root, algorithm, uneven=True)


def scatterv(
    place: Place, sendbuf: Any, recvbuf: Any, root: int, algorithm: str
) -> Prepared | None:
    return scatter(place, sendbuf, recvbuf, root, algorithm, uneven=True)


def alltoallv(place: Place, sendbuf: Any, recvbuf: Any, algorithm: str) -> Prepared | None:
    return alltoall(place, sendbuf, recvbuf, algorithm, uneven=True)


def barrier(place: Place, algorithm: str) -> Prepared | None:
    algorithm = resolve("barrier", algorithm, place, 0)
    return Prepared(Call("barrier", algorithm, np.dtype(np.uint8)), None, None)


def _blocks(
    spec: Any, place: Place, writable: bool, uneven: bool
) -> tuple[Buffer | None, tuple[int, ...]]:
    """A buffer with one block a rank, and the blocks' counts."""
    if uneven:
        data = vector(spec, place.rank, writable, place.size)
        return data, data.counts if data is not None else ()
    data = simple(spec, place.rank, writable, place.size)
    return data, (data.count,) * place.size if data is not None else ()


def _match_block(
    collective: str, place: Place, one: Buffer, many: Buffer, counts: tuple[int, ...]
) -> None:
    if one.count != counts[place.rank] or one.dtype.itemsize != many.dtype.itemsize:
        raise BadBufferError(
            f"{collective}: rank {place.rank} has {one.count} {one.dtype} in its own buffer and "
            f"{counts[place.rank]} {many.dtype} in its block of the other; dtypes and lengths "
            "must match"
        )


def _copied(data: Buffer, count: int) -> Buffer:
    """The same elements elsewhere, as `count` of them."""
    copy = np.array(data.array, copy=True)
    shift = data.address - data.array.ctypes.data
    return replace(data, array=copy, address=copy.ctypes.data + shift, count=count)


def _known(place: Place, count: int, uneven: bool) -> tuple[int, ...]:
    """The counts as far as a rank that is not the root knows them."""
    return tuple(count if not uneven or r == place.rank else 0 for r in range(place.size))


def _rooted(
    collective: str,
    algorithm: str,
    place: Place,
    counts: tuple[int, ...],
    data: Buffer,
    uneven: bool,
) -> str:
    if uneven and algorithm == AUTO:
        return "direct"  # the others need to know everybody's counts
    chosen = resolve(collective, algorithm, place, sum(counts) * data.dtype.itemsize)
    if uneven and chosen != "direct":
        raise ValueError(
            f"{collective}: rank {place.rank}: the v-form runs with algorithm 'direct' only, not "
            f"{chosen!r}: ranks do not know each other's counts"
        )
    return chosen


def _side_by_side(counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(counts[:rank]) for rank in range(len(counts)))
