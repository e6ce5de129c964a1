"""Describes a collective as data: rounds of steps on blocks of a buffer.

Vocabulary. A *block* is a numbered part of the collective's data; what the numbers mean is the
collective's contract (`inputs`, `outputs`). A *step* is one message, or one local act, on a cyclic
range of blocks. A *round* is the set of steps a rank starts together; the rank enters its next
round when its own steps are done, whatever the others do. A *schedule* is one rank's rounds.

Invariants. Steps hold block indices, never addresses or lengths, so that a schedule is the same
for every buffer length and can be proved (`check`), drawn (`draw`), counted (here), timed and run
(`executor`). Messages from one rank to another are received in the order in which they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

REDUCING = frozenset({"allreduce", "reduce", "reduce_scatter"})
ROOTED = frozenset({"reduce", "bcast", "gather", "scatter"})
COLLECTIVES = (
    "allreduce",
    "reduce",
    "reduce_scatter",
    "bcast",
    "allgather",
    "gather",
    "scatter",
    "alltoall",
    "barrier",
)


class Kind(IntEnum):
    """What a step does; the second half of each line is what a codec adds to it."""

    SEND = 0  # send the current value; encoded
    ADD = 1  # receive and accumulate; decoded on the way
    SEAL = 2  # nothing; encode a finished block once and keep what the others will decode
    FORWARD = 3  # send the current value; as the bytes that were sealed or received
    RECV = 4  # receive in place; keep the bytes for forwarding, then decode


SENDING = frozenset({Kind.SEND, Kind.FORWARD})
RECEIVING = frozenset({Kind.ADD, Kind.RECV})


@dataclass(frozen=True, slots=True)
class Step:
    """One act on the blocks first, first + 1, ... (count of them, cyclic in the block count)."""

    kind: Kind
    peer: int
    first: int
    count: int = 1

    def indices(self, blocks: int) -> list[int]:
        return [(self.first + i) % blocks for i in range(self.count)]

    def runs(self, blocks: int) -> list[tuple[int, int]]:
        """The range as one or, where it wraps around, two plain ranges (first, count)."""
        over = self.first + self.count - blocks
        if over <= 0:
            return [(self.first, self.count)]
        return [(self.first, self.count - over), (0, over)]


Round = tuple[Step, ...]


def send(peer: int, first: int, count: int = 1) -> Step:
    return Step(Kind.SEND, peer, first, count)


def add(peer: int, first: int, count: int = 1) -> Step:
    return Step(Kind.ADD, peer, first, count)


def seal(first: int, count: int = 1) -> Step:
    return Step(Kind.SEAL, -1, first, count)


def forward(peer: int, first: int, count: int = 1) -> Step:
    return Step(Kind.FORWARD, peer, first, count)


def recv(peer: int, first: int, count: int = 1) -> Step:
    return Step(Kind.RECV, peer, first, count)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One rank's part in a collective."""

    collective: str
    algorithm: str
    size: int
    rank: int
    root: int
    blocks: int
    rounds: tuple[Round, ...]

    def steps(self) -> Iterator[Step]:
        for steps in self.rounds:
            yield from steps

    def sends(self) -> Iterator[Step]:
        return (step for step in self.steps() if step.kind in SENDING)

    @property
    def messages(self) -> int:
        """Messages this rank sends when no block is empty."""
        return sum(1 for _ in self.sends())

    @property
    def round_count(self) -> int:
        """Rounds in which this rank sends or receives."""
        return sum(any(step.kind != Kind.SEAL for step in steps) for steps in self.rounds)

    def sent(self, lengths: Sequence[int]) -> int:
        """What this rank sends, in the unit of `lengths` (one entry a block)."""
        return sum(lengths[block] for step in self.sends() for block in step.indices(self.blocks))


def cut(n: int, blocks: int, align: int = 1) -> list[int]:
    """Lengths of `blocks` consecutive parts of n elements, as even as whole units allow.

    Part boundaries are multiples of `align` (but for the last), so that parts start on cache
    lines or code words; the parts may be empty.

    >>> cut(10, 4), cut(3, 4), cut(40, 2, align=16)
    ([2, 3, 2, 3], [0, 1, 1, 1], [16, 24])
    """
    if blocks == 0:
        return []
    units = n // align
    edges = [units * block // blocks * align for block in range(blocks)] + [n]
    return [stop - start for start, stop in pairwise(edges)]


def inputs(collective: str, size: int, rank: int, root: int, blocks: int) -> range:
    """The blocks that a rank holds when the collective starts."""
    match collective:
        case "allreduce" | "reduce" | "reduce_scatter":
            return range(blocks)
        case "bcast" | "scatter":
            return range(blocks) if rank == root else range(0)
        case "allgather" | "gather":
            return range(rank, rank + 1)
        case "alltoall":
            return range(rank * size, (rank + 1) * size)
        case "barrier":
            return range(0)
    raise ValueError(f"unknown collective {collective!r}; one of {', '.join(COLLECTIVES)}")


def outputs(collective: str, size: int, rank: int, root: int, blocks: int) -> range:
    """The blocks that a rank must hold when the collective ends."""
    match collective:
        case "allreduce" | "bcast" | "allgather":
            return range(blocks)
        case "reduce" | "gather":
            return range(blocks) if rank == root else range(0)
        case "reduce_scatter" | "scatter":
            return range(rank, rank + 1)
        case "alltoall":
            return range(rank, size * size, size)
        case "barrier":
            return range(0)
    raise ValueError(f"unknown collective {collective!r}; one of {', '.join(COLLECTIVES)}")
