"""Laws of plans that need no communicator: scratch, segments, lanes, and the words themselves."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mpiopt import executor as x
from mpiopt.algorithms import algorithms, block_count
from mpiopt.plan import Call, Channel, Plan, Tuning, layout, segment_count
from mpiopt.schedule import COLLECTIVES, REDUCING, ROOTED

EVERY = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
FLOAT = np.dtype(np.float32)
BLOCK = 64 << 10  # bytes


def channel(**tuning: int) -> Channel:
    return Channel(0, Tuning(**tuning), spins=0, nap_us=0)


def call_of(collective: str, algorithm: str, size: int, root: int, in_place: bool) -> Call:
    """A call whose blocks all have BLOCK bytes."""
    n = BLOCK // FLOAT.itemsize
    op = "sum" if collective in REDUCING else None
    if collective in ("allreduce", "reduce", "bcast"):
        counts: tuple[int, ...] = (n * block_count(collective, algorithm, size),)
    else:
        counts = () if collective == "barrier" else (n,) * size
    received = counts if collective == "alltoall" else ()
    return Call(collective, algorithm, FLOAT, counts, op, root, in_place, received)


def calls(collective: str, algorithm: str, size: int) -> list[list[Call]]:
    """For each kind of call, every rank's."""
    roots = {0, size // 2, size - 1} if collective in ROOTED else {0}
    no_place = collective in ("bcast", "alltoall", "barrier")
    made = []
    for root, in_place in product(sorted(roots), (False,) if no_place else (False, True)):
        here = [in_place and (collective not in ROOTED or rank == root) for rank in range(size)]
        made.append([call_of(collective, algorithm, size, root, at) for at in here])
    return made


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_scratch_is_never_above_one_buffer(collective: str, algorithm: str) -> None:
    for size in range(1, 18):
        for everybody in calls(collective, algorithm, size):
            for rank, call in enumerate(everybody):
                plan = Plan(call, size, rank, channel())
                assert plan.scratch_bytes <= plan.buffer_bytes, (size, rank, call)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_ranks_agree_on_segments_and_tags(collective: str, algorithm: str) -> None:
    for size, segment_bytes in product((2, 3, 5, 8, 17), (1 << 10, 10_000, 1 << 20)):
        for everybody in calls(collective, algorithm, size):
            plans = [
                Plan(call, size, rank, channel(segment_bytes=segment_bytes))
                for rank, call in enumerate(everybody)
            ]
            assert len({plan.segments for plan in plans}) == 1
            assert len({int(plan.words[x.H_TAGS]) for plan in plans}) == 1
            # Segments of one tag must run in one lane, or they could overtake each other.
            assert all(plan.words[x.H_TAGS] % plan.lanes == 0 for plan in plans)


def test_no_message_of_a_plan_is_longer_than_it_may_be() -> None:
    longest = 1000
    for (collective, algorithm), segment_bytes in product(EVERY, (512, 1 << 30)):
        for everybody in calls(collective, algorithm, 5):
            for rank, call in enumerate(everybody):
                tuning = channel(segment_bytes=segment_bytes, longest_bytes=longest)
                plan = Plan(call, 5, rank, tuning)
                rounding = 16 * FLOAT.itemsize  # segments begin on whole cache lines
                for row in (row for rows in plan.program.rounds for row in rows):
                    if row.kind != x.COPY:
                        share = -(-row.count // plan.segments) * FLOAT.itemsize
                        assert share <= longest + rounding


def test_short_buffers_are_one_segment_and_uneven_ones_always() -> None:
    short = Call("allreduce", "ring", FLOAT, (1000,), "sum")
    assert segment_count(short, layout(short, 4, 0), 4, Tuning()) == 1
    uneven = Call("gather", "direct", FLOAT, (1 << 24,) * 4, uneven=True)
    assert segment_count(uneven, layout(uneven, 4, 0), 4, Tuning()) == 1
    long = Call("allreduce", "ring", FLOAT, (1 << 24,), "sum")
    assert segment_count(long, layout(long, 4, 0), 4, Tuning(segment_bytes=1 << 20)) == 16


def test_words_hold_every_row_once_and_rounds_in_order() -> None:
    for collective, algorithm in EVERY:
        plan = Plan(calls(collective, algorithm, 5)[0][2], 5, 2, channel())
        rows = [row for rows in plan.program.rounds for row in rows]
        first = int(plan.words[x.H_FIRST])
        assert int(plan.words[first + len(plan.program.rounds)]) == len(rows)
        for number, row in enumerate(rows):
            words = plan.row(number)
            assert (words[x.R_PEER], words[x.R_COUNT]) == (row.peer, row.count)
            assert words[x.R_AFTER] < number
        assert plan.address == plan.words.ctypes.data


def test_equal_calls_are_one_key_and_different_ones_are_not() -> None:
    one = Call("allreduce", "ring", np.dtype("int64"), (10,), "sum")
    same = Call("allreduce", "ring", np.dtype("l"), (10,), "sum")
    assert one == same
    assert hash(one) == hash(same)
    others = [
        Call("allreduce", "ring", np.dtype("float64"), (10,), "sum"),
        Call("allreduce", "ring", np.dtype("int64"), (11,), "sum"),
        Call("allreduce", "ring", np.dtype("int64"), (10,), "prod"),
        Call("allreduce", "two_shot", np.dtype("int64"), (10,), "sum"),
        Call("allreduce", "ring", np.dtype("int64"), (10,), "sum", in_place=True),
    ]
    assert len({one, *others}) == len(others) + 1
