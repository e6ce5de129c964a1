"""Turns a call into a plan: the block of words that the executor runs, ready to be run again.

A *call* is everything about a collective but the addresses of its buffers and the communicator;
equal calls share a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from mpiopt import executor as x
from mpiopt import wire
from mpiopt.algorithms import block_count, schedule
from mpiopt.kernels.reduce import reduction
from mpiopt.lower import Layout, Program, Row, lower
from mpiopt.rings import Rings
from mpiopt.schedule import COLLECTIVES, REDUCING, Kind, Schedule, cut, inputs, outputs

_LINE = 64
_MAX_LANES = 8
# Below this a second segment costs more than the scratch that it saves.
_SMALL = 4 << 10


@dataclass(frozen=True)
class Tuning:
    """How plans are cut and how they wait; the same on every rank."""

    segment_bytes: int = 512 << 10
    lanes: int = 4
    # Through rings: short enough for both directions to stay in the cache; and from `long_bytes` on
    # blocks are read straight from the sender's memory, where few long messages are best.
    ring_segment_bytes: int = 128 << 10
    long_bytes: int = 1 << 20
    long_segment_bytes: int = 4 << 20
    # MPI counts are 32-bit; half of that leaves room for rounding.
    longest_bytes: int = 1 << 30
    # Between ranks of one node, through shared memory instead of MPI's messages.
    shared_memory: bool = True


@dataclass(frozen=True)
class Call:
    """One collective call. Counts and displacements are in elements, one a rank.

    For reductions to one vector and for broadcasts `counts` is its length alone. An all-to-all has
    the counts that the rank sends in `counts` and those that it receives in `recv_counts`.
    Displacements are None where blocks lie side by side. `uneven` says that ranks know only the
    counts that concern them, so that messages cannot be cut or joined by a common rule.
    """

    collective: str
    algorithm: str
    dtype: np.dtype[Any]
    counts: tuple[int, ...] = ()
    op: str | None = None
    root: int = 0
    in_place: bool = False
    recv_counts: tuple[int, ...] = ()
    send_displs: tuple[int, ...] | None = None
    recv_displs: tuple[int, ...] | None = None
    uneven: bool = False


def _starts(counts: Sequence[int]) -> list[int]:
    return list(accumulate(counts, initial=0))[:-1]


def block_lengths(n: int, blocks: int, item_bytes: int) -> list[int]:
    """Lengths of the blocks of a vector; they start on cache lines once blocks are a few lines."""
    line = max(1, _LINE // item_bytes)
    return cut(n, blocks, line if n >= 8 * line * blocks else 1)


def layout(call: Call, size: int, rank: int) -> Layout:
    """Where the blocks of a call lie in one rank's buffers."""
    blocks = block_count(call.collective, call.algorithm, size)
    item, where = call.dtype.itemsize, (call.collective, size, rank, call.root, blocks)
    held, wanted = inputs(*where), outputs(*where)
    lengths: list[int] | Mapping[int, int]
    if call.collective == "alltoall":
        lengths = _by_block(held, call.counts) | _by_block(wanted, call.recv_counts)
        source = _by_block(held, call.send_displs or _starts(call.counts))
        target = _by_block(wanted, call.recv_displs or _starts(call.recv_counts))
        return Layout(lengths, source, target, item, packed=False)
    if call.collective in ("allreduce", "reduce", "bcast"):
        lengths = block_lengths(call.counts[0], blocks, item)
    else:
        lengths = list(call.counts)
    displs = call.send_displs or call.recv_displs or _starts(lengths)
    # A buffer for all blocks has each at its displacement; a buffer for one begins with it.
    spread = call.in_place or call.collective not in ("allgather", "gather")
    source = {block: displs[block] if spread else 0 for block in held}
    single = call.collective in ("reduce_scatter", "scatter")
    target = {block: 0 if single else displs[block] for block in wanted}
    in_place = call.in_place or call.collective == "bcast"
    if call.collective == "scatter" and call.in_place:
        target, in_place = {}, False  # the root's own block stays where it is
    packed = not call.uneven and call.send_displs is None and call.recv_displs is None
    return Layout(lengths, source, target, item, in_place, packed)


def _by_block(blocks: range, values: Sequence[int]) -> dict[int, int]:
    return dict(zip(blocks, values, strict=True))


def segment_count(call: Call, at: Layout, size: int, tuning: Tuning, shared: bool = False) -> int:
    """Into how many segments every block is cut; from what all ranks know, so that all agree."""
    if call.uneven or call.collective == "barrier" or size == 1:
        return 1
    lengths = at.lengths.values() if isinstance(at.lengths, Mapping) else at.lengths
    longest = max(lengths, default=0) * at.item_bytes
    segment_bytes = tuning.segment_bytes
    if shared:
        # An exchange of the same block both ways gains nothing from being read in one piece.
        long = longest >= tuning.long_bytes and call.algorithm != "recursive_doubling"
        segment_bytes = tuning.long_segment_bytes if long else tuning.ring_segment_bytes
    segments = max(1, -(-longest // min(segment_bytes, tuning.longest_bytes)))
    # Where the partial result needs scratch as well as the arriving message, three segments keep
    # both, each rounded up to cache lines, within one buffer.
    folded = call.algorithm == "recursive_halving" and size & (size - 1)
    if longest > _SMALL and (
        call.collective == "reduce" or (call.collective == "reduce_scatter" and folded)
    ):
        segments = max(3, segments)
    return segments


def _predecessors(steps: Sequence[Row], first: int) -> Iterator[int]:
    """For each row of a round, the number of the one that must move before it, or -1."""
    latest: dict[tuple[int, bool], int] = {}
    for number, row in enumerate(steps, first):
        key = row.peer, row.kind == Kind.SEND
        yield latest.get(key, -1)
        latest[key] = number


class Plan:
    """A call made ready: words for the executor, and what is needed to explain a failure."""

    def __init__(self, call: Call, size: int, rank: int, channel: Channel) -> None:
        self.call = call
        self.schedule: Schedule = schedule(call.collective, call.algorithm, size, rank, call.root)
        self.layout = layout(call, size, rank)
        tuning = channel.tuning
        self.segments = segment_count(
            call, self.layout, size, tuning, shared=channel.rings is not None
        )
        longest = max(1, tuning.longest_bytes // call.dtype.itemsize)
        self.program: Program = lower(self.schedule, self.layout, self.segments, longest)
        self.tags = max(1, min(tuning.lanes, self.segments, _MAX_LANES))
        # A ring delivers in order, so one lane; it streams, so one is enough.
        self.lanes = 1 if channel.rings is not None else self._lane_count()
        self.scratch_bytes = self.lanes * self.program.scratch_bytes
        self.words = self._assemble(channel)
        self.address = self.words.ctypes.data

    def _lane_count(self) -> int:
        # A divisor of the tags, so that segments of one tag share a lane and keep their order.
        lanes, stride = self.tags, self.program.scratch_bytes
        while lanes > 1 and (lanes * stride > self.buffer_bytes or self.tags % lanes):
            lanes -= 1
        return lanes

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the larger of the user's buffers."""
        lengths, item = self.layout.lengths, self.layout.item_bytes
        each = lengths.values() if isinstance(lengths, Mapping) else lengths
        return sum(each) * item

    def _assemble(self, channel: Channel) -> np.ndarray[Any, np.dtype[np.int64]]:
        rounds, numbers = self.program.rounds, self.program.numbers
        firsts = [0, *accumulate(len(steps) for steps in rounds)]
        rows = [
            [*row.words(), number, after]
            for steps, number, first in zip(rounds, numbers, firsts, strict=False)
            for row, after in zip(steps, _predecessors(steps, first), strict=True)
        ]
        width = max((len(steps) for steps in rounds), default=0)
        header = [0] * x.HEADER
        header[x.H_ROUNDS] = len(rounds)
        header[x.H_SEGMENTS], header[x.H_LANES] = self.segments, self.lanes
        header[x.H_ITEM] = self.call.dtype.itemsize
        header[x.H_COMM], header[x.H_BYTE] = channel.comm_handle, wire.BYTE
        header[x.H_IGNORE] = wire.STATUS_IGNORE
        header[x.H_TAG] = COLLECTIVES.index(self.call.collective) * _MAX_LANES
        header[x.H_TAGS] = self.tags
        header[x.H_FIRST] = x.HEADER + len(rows) * x.ROW
        header[x.H_LANE] = header[x.H_FIRST] + len(firsts)
        header[x.H_REQUEST] = header[x.H_LANE] + self.lanes * x.LANE
        header[x.H_WIDTH], header[x.H_STRIDE] = width, self.program.scratch_bytes
        if channel.rings is not None:
            header[x.H_RINGS] = channel.rings.address
        header[x.H_SPINS], header[x.H_NAP] = channel.spins, channel.nap_us
        if self.call.collective in REDUCING:
            header[x.H_REDUCTION] = reduction(str(self.call.op), self.call.dtype)
        header[x.H_STATUS] = header[x.H_REQUEST] + self.lanes * width * x.SLOT
        words = np.zeros(header[x.H_STATUS] + wire.STATUS_WORDS, dtype=np.int64)
        flat = [word for row in rows for word in row]
        words[: header[x.H_LANE]] = header + flat + firsts
        return words

    def row(self, number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        at = x.HEADER + number * x.ROW
        return self.words[at : at + x.ROW]

    def waiting(self) -> list[int]:
        """The rows that an unfinished call waits for, one a lane."""
        w, rows = self.words, []
        for lane in range(self.lanes):
            state = int(w[x.H_LANE]) + lane * x.LANE
            if w[state + x.L_SEGMENT] >= 0:
                first = w[int(w[x.H_FIRST] + w[state + x.L_ROUND])]
                rows.append(int(first + w[state + x.L_FINISHED]))
        return rows


@dataclass(frozen=True)
class Channel:
    """What plans need to know of where they run."""

    comm_handle: int
    tuning: Tuning
    spins: int
    nap_us: int
    rings: Rings | None = None
