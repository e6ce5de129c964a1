"""Turns (collective, size, dtype, op) into buffers and into a call on any communicator.

The *size* of a collective is that of its longest buffer, as in nccl-tests: what the all-gather
receives, what the reduce-scatter is given. Collectives that deal the data out to ranks use whole,
equal parts, so their size may be rounded. All-reduce and reduce work in place. The root is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiopt.bench.exact import OP_KINDS, Array, exact_values

Call = Callable[[], object]

ROOT = 0
DEALT = frozenset({"reduce_scatter", "allgather", "gather", "scatter", "alltoall"})
OPS: dict[str, MPI.Op] = {name: getattr(MPI, name.upper()) for name in OP_KINDS}


def element_count(collective: str, ranks: int, size_bytes: int, dtype: np.dtype[Any]) -> int:
    """Elements of the longest buffer: at most `size_bytes`, at least one (one a rank if dealt)."""
    if collective == "barrier":
        return 0
    count = max(1, size_bytes // dtype.itemsize)
    return max(1, count // ranks) * ranks if collective in DEALT else count


@dataclass
class Work:
    """One collective of `count` elements, with this rank's buffers."""

    collective: str
    ranks: int
    rank: int
    count: int
    dtype: np.dtype[Any]
    op: str
    send: Array = field(init=False)
    recv: Array = field(init=False)

    def __post_init__(self) -> None:
        part = self.count // self.ranks
        at_root = self.count if self.rank == ROOT else 0
        sent, received = {
            "allreduce": (0, self.count),
            "reduce": (0, self.count),
            "reduce_scatter": (self.count, part),
            "bcast": (0, self.count),
            "allgather": (part, self.count),
            "gather": (part, at_root),
            "scatter": (at_root, part),
            "alltoall": (self.count, self.count),
            "barrier": (0, 0),
        }[self.collective]
        # Zeros: repeated sums in place must not grow into infinities or shrink into denormals.
        self.send = np.zeros(sent, self.dtype)
        self.recv = np.zeros(received, self.dtype)

    @property
    def size_bytes(self) -> int:
        return self.count * self.dtype.itemsize

    def bind(self, comm: MPI.Intracomm, **extra: str) -> Call:
        """The collective on `comm`, ready to be called; `extra` are keywords of ours."""
        send, recv, op = self.send, self.recv, OPS[self.op]
        at_root = self.rank == ROOT
        match self.collective:
            case "allreduce":
                return partial(comm.Allreduce, MPI.IN_PLACE, recv, op, **extra)
            case "reduce" if at_root:
                return partial(comm.Reduce, MPI.IN_PLACE, recv, op, ROOT, **extra)
            case "reduce":
                return partial(comm.Reduce, recv, None, op, ROOT, **extra)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, send, recv, op, **extra)
            case "bcast":
                return partial(comm.Bcast, recv, ROOT, **extra)
            case "allgather":
                return partial(comm.Allgather, send, recv, **extra)
            case "gather":
                return partial(comm.Gather, send, recv if at_root else None, ROOT, **extra)
            case "scatter":
                return partial(comm.Scatter, send if at_root else None, recv, ROOT, **extra)
            case "alltoall":
                return partial(comm.Alltoall, send, recv, **extra)
        return partial(comm.Barrier, **extra)

    def outcome(self, call: Call, inputs: tuple[Array, Array]) -> Array:
        """What `call` leaves on this rank, given the contents of both buffers."""
        self.send[:], self.recv[:] = inputs
        call()
        written = self.recv.copy()
        self.send[:], self.recv[:] = 0, 0
        # Only the root's buffer is defined after a reduce in place.
        return written[:0] if self.collective == "reduce" and self.rank != ROOT else written

    def exact_inputs(self, seed: int) -> tuple[Array, Array]:
        """Contents for both buffers, different on each rank, that combine without rounding."""
        rng = np.random.default_rng((seed, self.rank, self.count))
        draw = partial(exact_values, rng, self.op, self.dtype, self.ranks)
        return draw(self.send.size), draw(self.recv.size)
