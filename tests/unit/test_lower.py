"""Runs lowered programs in plain Python, all ranks in one process, against NumPy's results.

The interpreter is as free as MPI is: which lane gets on, which message is delivered next, and
whether a message is read when it is sent or when it is delivered are all drawn at random. What the
executor promises is kept: receives are posted before sends, rows finish in their order, messages
of one tag between two ranks do not overtake. Every access is checked against its region's bounds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiopt.algorithms import algorithms, block_count, schedule
from mpiopt.executor import COPY, INPUT, OUTPUT, SCRATCH
from mpiopt.lower import Program, Row, lower
from mpiopt.plan import Call, block_lengths, layout
from mpiopt.schedule import COLLECTIVES, ROOTED, Kind

EVERY = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
ITEM = 8
SENTINEL = -777


def start_of(count: int, segment: int, segments: int) -> int:
    """Where a segment of a row begins, by the executor's rule."""
    return count if segment >= segments else (count * segment // segments) // 16 * 16


@dataclass
class Message:
    row: Row
    lane: Lane
    data: Any = None  # read already, if it was sent eagerly


@dataclass
class Lane:
    """A segment at work on one rank."""

    rank: int
    program: Program
    segments: int
    segment: int
    lanes: int
    regions: dict[int, Any]
    number: int = 0  # of the round
    finished: int = 0
    done: set[int] = field(default_factory=set)  # rows of the round that MPI has completed

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.program.rounds[self.number]

    def part(self, row: Row, place: tuple[int, int]) -> Any:
        """The lane's segment of the row's elements at a place, as a view."""
        start = start_of(row.count, self.segment, self.segments)
        count = start_of(row.count, self.segment + 1, self.segments) - start
        region, at = place
        assert at % ITEM == 0
        first = at // ITEM + (0 if region == SCRATCH else start)
        array = self.regions[region]
        if count:
            assert 0 <= first, (row, "before its region")
            assert first + count <= array.size, (row, "beyond its region")
        return array[first : first + count]


class Machine:
    """All ranks' lanes, the wires between them, and a source of surprises."""

    def __init__(self, random: Random, tags: int) -> None:
        self.random, self.tags = random, tags
        self.sent: dict[Any, deque[tuple[Message, int]]] = defaultdict(deque)
        self.posted: dict[Any, deque[tuple[Message, int]]] = defaultdict(deque)
        self.lanes: list[Lane] = []

    def start(self, lane: Lane) -> None:
        """Begin a round: post receives, then send and copy in row order."""
        lane.finished, lane.done = 0, set()
        tag = lane.segment % self.tags
        for index, row in enumerate(lane.rows):
            if row.kind in (Kind.ADD, Kind.RECV):
                wire = (row.peer, lane.rank, tag)
                self.posted[wire].append((Message(row, lane), index))
        for index, row in enumerate(lane.rows):
            if row.kind == Kind.SEND:
                eager = self.random.random() < 0.5
                data = lane.part(row, row.x).copy() if eager else None
                wire = (lane.rank, row.peer, tag)
                self.sent[wire].append((Message(row, lane, data), index))
                if eager:
                    lane.done.add(index)
            elif row.kind == COPY:
                lane.part(row, row.y)[:] = lane.part(row, row.x)
                lane.done.add(index)

    def deliver(self) -> bool:
        """Complete one message that has both its ends, chosen at random."""
        ready = [wire for wire, queue in self.posted.items() if queue and self.sent[wire]]
        if not ready:
            return False
        wire = self.random.choice(ready)
        (source, sent_index), (target, posted_index) = (
            self.sent[wire].popleft(),
            self.posted[wire].popleft(),
        )
        data = source.data
        if data is None:
            data = source.lane.part(source.row, source.row.x).copy()
            source.lane.done.add(sent_index)
        landing = target.lane.part(target.row, target.row.x)
        assert landing.size == data.size, (wire, source.row, target.row)
        landing[:] = data
        target.lane.done.add(posted_index)
        return True

    def advance(self, lane: Lane) -> bool:
        """Finish the rows that can be finished, in order; True if the lane moved."""
        moved = False
        while True:
            while lane.finished < len(lane.rows) and lane.finished in lane.done:
                row = lane.rows[lane.finished]
                if row.kind == Kind.ADD:
                    x, y = lane.part(row, row.x), lane.part(row, row.y)
                    first, second = (y, x) if row.local_first else (x, y)
                    lane.part(row, row.z)[:] = first + second
                lane.finished += 1
                moved = True
            if lane.finished < len(lane.rows):
                return moved
            lane.number += 1
            if lane.number == len(lane.program.rounds):
                lane.number, lane.segment = 0, lane.segment + lane.lanes
                if lane.segment >= lane.segments:
                    self.lanes.remove(lane)
                    return True
            self.start(lane)
            moved = True
            if self.random.random() < 0.5:
                return True

    def run(self) -> None:
        for lane in list(self.lanes):
            self.start(lane)
        while self.lanes:
            moved = False
            for _ in range(self.random.randrange(1, 4)):
                moved |= self.deliver()
            for lane in self.random.sample(self.lanes, len(self.lanes)):
                if lane in self.lanes:
                    moved |= self.advance(lane)
            assert moved, "deadlock"
        assert not any(self.sent.values()), "a message that nobody received"


@dataclass
class Ranks:
    """A collective on all ranks: its calls, and the buffers that they run on."""

    calls: list[Call]
    inputs: list[Any]
    outputs: list[Any]

    def run(self, segments: int, longest: int, random: Random) -> None:
        size, tags = len(self.calls), random.choice([1, 2, 4])
        machine = Machine(random, tags)
        for rank, call in enumerate(self.calls):
            at = layout(call, size, rank)
            todo = schedule(call.collective, call.algorithm, size, rank, call.root)
            program = lower(todo, at, segments, longest)
            if not program.rounds:
                continue
            lanes = random.choice([n for n in (1, 2, 4) if n <= tags])
            for lane in range(min(lanes, segments)):
                scratch = np.full(program.scratch_bytes // ITEM, SENTINEL, self.inputs[rank].dtype)
                regions = {INPUT: self.inputs[rank], OUTPUT: self.outputs[rank], SCRATCH: scratch}
                made = Lane(rank, program, segments, lane, min(lanes, segments), regions)
                machine.lanes.append(made)
        machine.run()


def empty(n: int) -> Any:
    return np.full(n, SENTINEL, dtype=np.float64)


DTYPE = np.dtype(np.float64)


def reducing(collective: str, algorithm: str, size: int, data: Any, case: Any) -> tuple[Any, ...]:
    """Ranks of allreduce, reduce or reduce_scatter; and the wanted outputs."""
    vectors, total, n = data, sum(data), data[0].size
    scatters, rooted = collective == "reduce_scatter", collective == "reduce"
    counts = tuple(case.counts) if scatters else (n,)
    starts = np.cumsum([0, *counts])
    calls, inputs, outputs, wanted = [], [], [], []
    for rank in range(size):
        in_place = case.in_place and (not rooted or rank == case.root)
        calls.append(Call(collective, algorithm, DTYPE, counts, "sum", case.root, in_place))
        result = total[starts[rank] : starts[rank + 1]] if scatters else total
        if rooted and rank != case.root:
            result = empty(0)
        room = result.size
        # In place, a reduce-scatter is given a copy of its input.
        shares = in_place and not scatters
        inputs.append(empty(0) if shares else vectors[rank].copy())
        outputs.append(vectors[rank].copy() if shares else empty(room))
        wanted.append(result)
    return Ranks(calls, inputs, outputs), wanted


def moving(collective: str, algorithm: str, size: int, data: Any, case: Any) -> tuple[Any, ...]:
    """Ranks of bcast, allgather, gather or scatter; and the wanted outputs."""
    if collective == "bcast":
        calls = [Call("bcast", algorithm, DTYPE, (data[0].size,), root=case.root)] * size
        ranks = Ranks(calls, [empty(0)] * size, [vector.copy() for vector in data])
        return ranks, [data[case.root]] * size
    counts = tuple(case.counts)
    starts = case.starts
    whole = empty(case.room)
    blocks = [data[r][: counts[r]] for r in range(size)]
    for start, block in zip(starts, blocks, strict=True):
        whole[start : start + block.size] = block
    calls, inputs, outputs, wanted = [], [], [], []
    for rank in range(size):
        at_root = rank == case.root or collective == "allgather"
        in_place = case.in_place and at_root
        known = (
            counts
            if at_root or not case.uneven
            else tuple(count if r == rank else 0 for r, count in enumerate(counts))
        )
        displs = tuple(starts) if at_root and case.spread else None
        if collective == "scatter":
            calls.append(
                Call(
                    "scatter",
                    algorithm,
                    DTYPE,
                    known,
                    None,
                    case.root,
                    in_place,
                    (),
                    displs,
                    None,
                    case.uneven,
                )
            )
            inputs.append(whole.copy() if at_root else empty(0))
            outputs.append(empty(0 if in_place else counts[rank]))
            wanted.append(empty(0) if in_place else blocks[rank])
            continue
        calls.append(
            Call(
                collective,
                algorithm,
                DTYPE,
                known,
                None,
                case.root,
                in_place,
                (),
                None,
                displs,
                case.uneven,
            )
        )
        before = empty(case.room)
        if in_place:
            mine = slice(starts[rank], starts[rank] + counts[rank])
            before[mine] = whole[mine]
        inputs.append(empty(0) if in_place else blocks[rank].copy())
        outputs.append(before if at_root else empty(0))
        wanted.append(whole if at_root else empty(0))
    return Ranks(calls, inputs, outputs), wanted


def exchanging(algorithm: str, size: int, case: Any, random: Random) -> tuple[Any, ...]:
    """Ranks of alltoall with a count for every pair; and the wanted outputs."""
    n = [[random.choice([0, 1, 5, 40]) for _ in range(size)] for _ in range(size)]
    if not case.uneven:
        n = [[n[0][0]] * size for _ in range(size)]
    calls, inputs, outputs, wanted = [], [], [], []
    for rank in range(size):
        sends, receives = tuple(n[rank]), tuple(n[peer][rank] for peer in range(size))
        call = Call("alltoall", algorithm, DTYPE, sends, recv_counts=receives, uneven=case.uneven)
        calls.append(call)
        block = lambda s, d: np.arange(n[s][d]) + 1000.0 * (s * size + d)  # noqa: E731
        inputs.append(np.concatenate([block(rank, peer) for peer in range(size)]))
        outputs.append(empty(sum(receives)))
        wanted.append(np.concatenate([block(peer, rank) for peer in range(size)]))
    return Ranks(calls, inputs, outputs), wanted


@dataclass
class Case:
    root: int
    in_place: bool
    counts: list[int]
    starts: list[int]
    room: int
    uneven: bool  # ranks know only their own counts
    spread: bool  # blocks lie apart


def draw_case(data: st.DataObject, collective: str, algorithm: str, size: int) -> Case:
    """Counts and places as `calls` makes them: blocks of unlike length have displacements."""
    root = data.draw(st.integers(0, size - 1)) if collective in ROOTED else 0
    in_place = data.draw(st.booleans())
    has_v_form = collective == "allgather" or algorithm == "direct"
    v_form = has_v_form and data.draw(st.booleans())
    length = st.integers(0, 90)
    if v_form or collective == "reduce_scatter":
        counts = [data.draw(length) for _ in range(size)]
    else:
        counts = [data.draw(length)] * size
    gap, backwards = (3, data.draw(st.booleans())) if v_form else (0, False)
    starts, at = [0] * size, 0
    for rank in range(size - 1, -1, -1) if backwards else range(size):
        starts[rank] = at
        at += counts[rank] + gap
    return Case(root, in_place, counts, starts, at, v_form and collective != "allgather", v_form)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
@settings(max_examples=60)
@given(data=st.data())
def test_a_lowered_schedule_computes_the_collective(
    collective: str, algorithm: str, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 9))
    case = draw_case(data, collective, algorithm, size)
    random = Random(data.draw(st.integers(0, 2**32)))
    segments = 1 if case.uneven else data.draw(st.integers(1, 4))
    longest = data.draw(st.sampled_from([1 << 27, 1 << 27, 20, 7]))
    if collective == "barrier":
        calls = [Call("barrier", algorithm, np.dtype(np.uint8))] * size
        Ranks(calls, [empty(0)] * size, [empty(0)] * size).run(1, longest, random)
        return
    n = sum(case.counts) if collective == "reduce_scatter" else data.draw(st.integers(0, 300))
    n = max(n, max(case.counts)) if collective in ("gather", "scatter", "allgather") else n
    draws = np.random.default_rng(random.randrange(2**32))
    vectors = [draws.integers(-1000, 1000, n).astype(np.float64) for _ in range(size)]
    if collective == "alltoall":
        ranks, wanted = exchanging(algorithm, size, case, random)
    elif collective in ("allreduce", "reduce", "reduce_scatter"):
        ranks, wanted = reducing(collective, algorithm, size, vectors, case)
    else:
        ranks, wanted = moving(collective, algorithm, size, vectors, case)
    before = [x.copy() for x in ranks.inputs]
    ranks.run(segments, longest, random)
    for rank in range(size):
        got = ranks.outputs[rank][: wanted[rank].size]
        assert np.array_equal(got, wanted[rank]), f"rank {rank}: {got} instead of {wanted[rank]}"
        untouched = np.array_equal(ranks.inputs[rank], before[rank])
        its_own_copy = collective == "reduce_scatter" and ranks.calls[rank].in_place
        assert untouched or its_own_copy, f"rank {rank}: input overwritten"


@pytest.mark.parametrize("algorithm", algorithms("allreduce"))
@settings(max_examples=40)
@given(
    size=st.integers(2, 9),
    n=st.integers(1, 200),
    segments=st.integers(1, 4),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_rank_of_a_lowered_allreduce_holds_the_same_bits(
    algorithm: str, size: int, n: int, segments: int, in_place: bool, seed: int
) -> None:
    """Sums that are not exact: the order of every addition shows."""
    draws, case = np.random.default_rng(seed), Case(0, in_place, [], [], 0, False, False)
    vectors = [draws.normal(size=n) * 10.0 ** draws.integers(-8, 8, n) for _ in range(size)]
    ranks, _ = reducing("allreduce", algorithm, size, vectors, case)
    ranks.run(segments, 1 << 27, Random(seed))
    assert len({output.tobytes() for output in ranks.outputs}) == 1
    magnitude = sum(abs(vector) for vector in vectors)
    assert np.all(abs(ranks.outputs[0] - sum(vectors)) <= 1e-14 * magnitude)


def test_blocks_of_a_long_vector_start_on_cache_lines() -> None:
    for item in (1, 2, 4, 8, 16):
        for blocks in range(1, 18):
            lengths = block_lengths(100_003, blocks, item)
            assert sum(lengths) == 100_003
            starts = np.cumsum([0, *lengths[:-1]])
            assert not np.any(starts * item % 64)
            assert block_lengths(blocks, blocks, item) == [1] * blocks


def test_what_is_sent_in_one_message_is_one_row_where_blocks_are_neighbours() -> None:
    """An unsegmented message of many blocks is one row, or two where its range wraps around."""
    for collective, algorithm in EVERY:
        if collective in ("barrier", "alltoall"):
            continue
        for size in (2, 5, 8):
            blocks = block_count(collective, algorithm, size)
            vector = collective in ("allreduce", "reduce", "bcast")
            counts = (16 * blocks,) if vector else (16,) * size
            op = "sum" if collective in ("allreduce", "reduce", "reduce_scatter") else None
            for rank in range(size):
                call = Call(collective, algorithm, DTYPE, counts, op)
                todo = schedule(collective, algorithm, size, rank)
                program = lower(todo, layout(call, size, rank), 1, 1 << 27)
                sends = [r for rows in program.rounds for r in rows if r.kind == Kind.SEND]
                runs = [len(step.runs(blocks)) for step in todo.sends()]
                assert len(sends) == sum(runs)
                assert sum(row.heads for row in sends) == len(runs)
