"""Laws of the proof: it accepts every algorithm, and rejects every way of breaking one."""

from __future__ import annotations

import random
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiopt.algorithms import algorithms, schedule
from mpiopt.check import ScheduleError, check, prove, prove_all, trace
from mpiopt.schedule import (
    COLLECTIVES,
    RECEIVING,
    REDUCING,
    ROOTED,
    SENDING,
    Kind,
    Round,
    Schedule,
    Step,
    add,
    forward,
    inputs,
    outputs,
    recv,
    seal,
    send,
)

EVERY = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
LOSSY = [key for key in EVERY if key != ("allreduce", "recursive_doubling")]
Plans = list[Schedule]
Place = tuple[int, int, int]  # rank, round, index of the step in the round


def plans(collective: str, algorithm: str, size: int, root: int = 0) -> Plans:
    return [schedule(collective, algorithm, size, rank, root) for rank in range(size)]


def made(collective: str, blocks: int, *ranks: tuple[Round, ...], root: int = 0) -> Plans:
    """Schedules written by hand, one tuple of rounds a rank."""
    return [
        Schedule(collective, "made", len(ranks), rank, root, blocks, rounds)
        for rank, rounds in enumerate(ranks)
    ]


def places(every: Plans, *kinds: Kind) -> Iterator[tuple[Place, Step]]:
    for plan in every:
        for now, steps in enumerate(plan.rounds):
            for index, step in enumerate(steps):
                if step.kind in kinds:
                    yield (plan.rank, now, index), step


def edit(every: Plans, place: Place, *steps: Step) -> Plans:
    """The schedules with one step replaced by others, or dropped; empty rounds stay."""
    rank, now, index = place
    rounds = list(every[rank].rounds)
    rounds[now] = (*rounds[now][:index], *steps, *rounds[now][index + 1 :])
    return [replace(p, rounds=tuple(rounds)) if p.rank == rank else p for p in every]


def meetings(every: Plans) -> list[tuple[Place, Place]]:
    """Which send meets which receive: the k-th of a pair of ranks the k-th, found without check."""
    sends, receives = defaultdict(list), defaultdict(list)
    for place, step in places(every, *SENDING):
        sends[place[0], step.peer].append(place)
    for place, step in places(every, *RECEIVING):
        receives[step.peer, place[0]].append(place)
    return [pair for key in sends for pair in zip(sends[key], receives[key], strict=True)]


def step_at(every: Plans, place: Place) -> Step:
    return every[place[0]].rounds[place[1]][place[2]]


def refused(every: Plans, codec: bool = False) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        check(every, codec)
    error, plan = caught.value, every[0]
    assert str(error).startswith(
        f"{plan.collective} {plan.algorithm}, size {plan.size}: rank {error.rank}, "
        f"round {error.round}"
    )
    assert error.block is None or f"block {error.block}" in str(error)
    return error


def where(error: ScheduleError) -> tuple[int, int, int | None]:
    return error.rank, error.round, error.block


# What is right is accepted.


def test_every_algorithm_is_proved_at_every_size_and_root() -> None:
    seen: list[str] = []
    rows = prove_all(17, progress=lambda row: seen.append(row.algorithm))
    assert [(row.collective, row.algorithm) for row in rows] == EVERY
    assert seen == [row.algorithm for row in rows]
    for row in rows:
        rooted = row.collective in ROOTED
        assert (row.sizes, row.roots) == ("1-17", "all" if rooted else "-")
        assert row.proofs == (17 * 18 // 2 if rooted else 17)
        assert row.seconds > 0
        assert row.codec == ((row.collective, row.algorithm) in LOSSY)


@given(st.sampled_from(EVERY), st.integers(1, 40), st.data())
def test_any_algorithm_is_proved_at_any_size(
    key: tuple[str, str], size: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1)) if key[0] in ROOTED else 0
    prove(*key, size, root, codec=key in LOSSY)


@pytest.mark.parametrize("size", [63, 64, 65, 100])
def test_the_logarithmic_algorithms_are_proved_on_many_ranks(size: int) -> None:
    for collective, algorithm in EVERY:
        if not re.search("ring|direct|two_shot|pairwise|scatter_", algorithm):
            prove(collective, algorithm, size, size - 1 if collective in ROOTED else 0)


# The proof speaks for real runs: numbers, eager sends and ranks of any speed give what it says.


def run_with_numbers(every: Plans, order: random.Random) -> list[list[int | None]]:
    """An executor with numbers, buffered sends and ranks that go on in a random order."""
    first = every[0]
    values: list[list[int | None]] = [[None] * first.blocks for _ in every]
    for plan in every:
        for block in inputs(plan.collective, plan.size, plan.rank, plan.root, plan.blocks):
            values[plan.rank][block] = 1000**plan.rank + block
    channels: defaultdict[tuple[int, int], deque[list[int | None]]] = defaultdict(deque)
    todo = [deque(plan.rounds) for plan in every]
    waiting: list[deque[Step]] = [deque() for _ in every]
    while any(todo) or any(waiting):
        rank = order.choice([r for r in range(len(every)) if todo[r] or waiting[r]])
        if not waiting[rank]:
            steps = todo[rank].popleft()
            for step in (s for s in steps if s.kind in SENDING):
                held = [values[rank][b] for b in step.indices(first.blocks or 1)]
                channels[rank, step.peer].append(held)
            waiting[rank].extend(s for s in steps if s.kind in RECEIVING)
        while waiting[rank] and channels[waiting[rank][0].peer, rank]:
            step = waiting[rank].popleft()
            arrived = channels[step.peer, rank].popleft()
            for block, value in zip(step.indices(first.blocks or 1), arrived, strict=True):
                assert value is not None
                own = values[rank][block] or 0
                values[rank][block] = own + value if step.kind == Kind.ADD else value
    return values


@given(st.sampled_from(EVERY), st.integers(1, 12), st.data())
def test_ranks_of_any_speed_end_with_the_collective_s_numbers(
    key: tuple[str, str], size: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1)) if key[0] in ROOTED else 0
    every = plans(*key, size, root)
    values = run_with_numbers(every, random.Random(data.draw(st.integers(0, 99))))
    for plan in every:
        for block in outputs(plan.collective, size, plan.rank, root, plan.blocks):
            if plan.collective in REDUCING:
                expected = sum(1000**rank + block for rank in range(size))
            else:
                origin = {"bcast": root, "scatter": root, "alltoall": block // size}
                expected = 1000 ** origin.get(plan.collective, block) + block
            assert values[plan.rank][block] == expected


# What is broken is refused, and the error says where.


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_a_dropped_step_is_refused(collective: str, algorithm: str) -> None:
    every = plans(collective, algorithm, 5)
    for place, step in places(every, *SENDING, *RECEIVING):
        error = refused(edit(every, place))
        # What remains of the message is left over, or meets the next message of the pair.
        assert {error.rank} <= {place[0], step.peer} or "deadlock" in str(error)


@pytest.mark.parametrize(
    ("collective", "algorithm"), [key for key in EVERY if key[1] != "scatter_allgather"]
)
def test_a_dropped_message_is_refused(collective: str, algorithm: str) -> None:
    # Not at 5: folds and odd barriers repeat themselves there. A broadcast by scatter and ring
    # may well do without some messages, since the tree has left more than one block on the way.
    every = plans(collective, algorithm, 4)
    for sent, received in meetings(every):
        error = refused(edit(edit(every, sent), received))
        assert "deadlock" not in str(error)


@pytest.mark.parametrize("algorithm", algorithms("reduce_scatter"))
def test_a_wrong_block_is_refused_at_its_receiver(algorithm: str) -> None:
    every = plans("reduce_scatter", algorithm, 5)
    for sent, received in meetings(every):
        step, wanted = step_at(every, sent), step_at(every, received)
        error = refused(edit(every, sent, replace(step, first=(step.first + 1) % 5)))
        assert where(error) == (received[0], received[1], wanted.first)
        assert f"from rank {sent[0]}, which in round {sent[1]} sends block" in str(error)


@pytest.mark.parametrize(
    ("collective", "algorithm"), [("reduce_scatter", "ring"), ("allgather", "direct")]
)
def test_a_message_with_the_wrong_block_at_both_ends_is_refused(
    collective: str, algorithm: str
) -> None:
    every = plans(collective, algorithm, 5)
    for sent, received in meetings(every):
        wrong = every
        for place in (sent, received):
            step = step_at(every, place)
            wrong = edit(wrong, place, replace(step, first=(step.first + 1) % 5))
        refused(wrong)


@pytest.mark.parametrize(("collective", "algorithm"), [k for k in EVERY if k[0] in REDUCING])
def test_a_repeated_addition_is_refused_where_it_is_counted_twice(
    collective: str, algorithm: str
) -> None:
    every = plans(collective, algorithm, 5)
    for sent, received in meetings(every):
        out, into = step_at(every, sent), step_at(every, received)
        if into.kind == Kind.ADD:
            error = refused(edit(edit(every, sent, out, out), received, into, into))
            assert where(error) == (received[0], received[1], into.first)
            assert "counted twice" in str(error)
            assert f"from rank {sent[0]}" in str(error)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_a_message_to_the_wrong_peer_is_refused(collective: str, algorithm: str) -> None:
    every = plans(collective, algorithm, 5)
    for place, step in places(every, *SENDING, *RECEIVING):
        for peer in set(range(5)) - {step.peer, place[0]}:
            refused(edit(every, place, replace(step, peer=peer)))


def test_two_messages_in_the_wrong_order_are_refused_at_the_first() -> None:
    every = plans("reduce_scatter", "ring", 4)
    early, late = every[1].rounds[0][0], every[1].rounds[1][0]
    error = refused(edit(edit(every, (1, 0, 0), late), (1, 1, 0), early))
    assert where(error) == (2, 0, 0)
    assert "expects block 0 from rank 1, which in round 0 sends block 3" in str(error)


def test_a_longer_range_than_expected_is_refused() -> None:
    error = refused(made("bcast", 2, ((send(1, 0, 2),),), ((recv(0, 0),), (recv(0, 1),))))
    assert where(error) == (1, 0, 0)
    assert "expects block 0 from rank 0, which in round 0 sends blocks 0-1" in str(error)


def test_swapped_peers_in_a_round_are_refused() -> None:
    every = plans("reduce_scatter", "two_shot", 4)
    one, two = every[3].rounds[0][:2]
    wrong = edit(every, (3, 0, 0), replace(one, peer=two.peer))
    error = refused(edit(wrong, (3, 0, 1), replace(two, peer=one.peer)))
    assert error.rank in (one.peer, two.peer)
    assert error.block == error.rank


@pytest.mark.parametrize(("collective", "algorithm"), LOSSY)
def test_a_missing_seal_matters_to_a_codec_only(collective: str, algorithm: str) -> None:
    for size in (4, 5):
        every = plans(collective, algorithm, size)
        for place, step in places(every, Kind.SEAL):
            wrong = edit(every, place)
            check(wrong)
            error = refused(wrong, codec=True)
            assert error.rank == place[0]
            assert error.round > place[1]
            assert "not all sealed" in str(error)
            assert step.peer == -1


def test_a_copy_encoded_again_is_refused_with_a_codec_only() -> None:
    every = made("bcast", 1, ((seal(0),), (forward(1, 0),)), ((recv(0, 0),),))
    check(every, codec=True)
    again = edit(every, (0, 1, 0), send(1, 0))
    check(again)
    error = refused(again, codec=True)
    assert where(error) == (1, 1, 0)
    assert "not from the same seal as at rank 0" in str(error)


def test_a_sum_of_sealed_blocks_is_not_sealed() -> None:
    up, down = ((seal(0),), (forward(0, 0),)), (recv(0, 0),)
    every = made("allreduce", 1, ((add(1, 0),), (forward(1, 0),)), (*up, down))
    check(every)
    error = refused(every, codec=True)
    assert where(error) == (0, 1, 0)
    assert "not all sealed" in str(error)


def test_recursive_doubling_leaves_a_lossy_codec_different_bits() -> None:
    with pytest.raises(ScheduleError, match="with a codec: not from the same seal as at rank 0"):
        prove("allreduce", "recursive_doubling", 4, codec=True)
    prove("allreduce", "recursive_doubling", 4)


RACES = {
    "received and sent": (made("bcast", 1, ((forward(1, 0), recv(1, 0)),), ((recv(0, 0),),)), 0),
    "received twice": (
        made("bcast", 2, ((forward(1, 0, 2), forward(1, 1)),), ((recv(0, 0, 2), recv(0, 1)),)),
        1,
    ),
    "sealed and sent": (made("bcast", 1, ((seal(0), forward(1, 0)),), ((recv(0, 0),),)), 0),
}


@pytest.mark.parametrize("what", RACES)
def test_a_round_that_writes_what_it_uses_is_a_race(what: str) -> None:
    every, rank = RACES[what]
    error = refused(every)
    assert where(error) == (rank, 0, every[0].blocks - 1)
    assert f"race: {what}" in str(error)


def test_a_store_beside_an_addition_is_a_race() -> None:
    for steps in ((add(1, 0), recv(1, 0)), (recv(1, 0), add(1, 0))):
        both = made("reduce", 1, (steps,), ((send(0, 0), send(0, 0)),))
        assert "race: received twice" in str(refused(both))


def test_an_addition_to_what_is_sent_sends_the_value_from_before() -> None:
    exchange = made("allreduce", 1, ((send(1, 0), add(1, 0)),), ((add(0, 0), send(0, 0)),))
    check(exchange)


def test_undefined_blocks_may_not_be_sent_added_to_or_sealed() -> None:
    error = refused(made("bcast", 1, ((recv(1, 0),),), ((forward(0, 0),),)))
    assert where(error) == (1, 0, 0)
    assert "undefined, but sent to rank 0" in str(error)
    error = refused(made("bcast", 1, ((send(1, 0),),), ((add(0, 0),),)))
    assert where(error) == (1, 0, 0)
    assert "undefined, but rank 0 adds to it" in str(error)
    error = refused(made("bcast", 2, ((send(1, 0, 2),),), ((seal(1),), (recv(0, 0, 2),))))
    assert where(error) == (1, 0, 1)
    assert "undefined, but sealed" in str(error)


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (send(2, 0), "peer 2 is not another rank of 2"),
        (send(-1, 0), "peer -1 is not another rank of 2"),
        (send(0, 0), "peer 0 is not another rank of 2"),
        (send(1, 3), "block 3 of 3 blocks"),
        (send(1, -1), "block -1 of 3 blocks"),
        (send(1, 0, 4), "blocks 0-3 of 3 blocks"),
        (send(1, 0, 0), "of 3 blocks"),
        (seal(3), "block 3 of 3 blocks"),
    ],
)
def test_steps_outside_the_ranks_or_the_blocks_are_refused(step: Step, what: str) -> None:
    error = refused(made("allreduce", 3, ((step,),), ()))
    assert where(error) == (0, 0, step.first)
    assert what in str(error)


def test_sends_that_wait_in_a_circle_are_a_deadlock_that_names_the_circle() -> None:
    ring = [((send((r + 1) % 3, 0),), (add((r - 1) % 3, 0),)) for r in range(3)]
    error = refused(made("allreduce", 1, *ring))
    assert where(error) == (0, 0, 0)
    for rank in range(3):
        wait = f"rank {rank} waits in round 0 to send to rank {(rank + 1) % 3} block 0"
        assert wait in str(error)


def test_a_rank_that_waits_for_a_finished_one_is_named_with_it() -> None:
    every = plans("bcast", "binomial_tree", 8)
    last = len(every[4].rounds) - 1
    assert every[4].rounds[last] == (forward(5, 0),)
    error = refused(edit(every, (4, last, 0)))
    assert where(error) == (5, 0, 0)
    assert "rank 5 waits in round 0 to receive from rank 4 block 0; rank 4 has finished" in str(
        error
    )


def test_a_message_left_over_is_refused() -> None:
    every = plans("allreduce", "ring", 3)
    extra = replace(every[2], rounds=(*every[2].rounds, (send(0, 1),)))
    error = refused([*every[:2], extra])
    assert where(error) == (2, len(every[2].rounds), 1)
    assert "rank 0 has finished" in str(error)


def test_a_missing_contribution_is_refused_at_the_end() -> None:
    every = plans("reduce", "binomial_tree", 4)
    sent, received = next(m for m in meetings(every) if m[0][0] == 3)
    error = refused(edit(edit(every, sent), received))
    assert where(error) == (0, len(every[0].rounds), 0)
    assert "ends with data of rank 0, 1, 2, not of rank 0, 1, 2, 3" in str(error)


def test_a_reduce_is_no_allreduce() -> None:
    every = [replace(p, collective="allreduce") for p in plans("reduce", "binomial_tree", 4)]
    error = refused(every)
    assert (error.rank, error.block) == (1, 0)


def test_a_wrong_origin_is_refused() -> None:
    every = [replace(p, root=1) for p in plans("bcast", "binomial_tree", 2)]
    assert "undefined" in str(refused(every))
    nothing = made("bcast", 1, (), ())
    assert where(refused(nothing)) == (1, 0, 0)
    assert "ends with data of nobody, not of rank 0" in str(refused(nothing))


def test_a_barrier_without_its_last_round_lets_a_rank_leave_early() -> None:
    every = [replace(p, rounds=p.rounds[:-1]) for p in plans("barrier", "dissemination", 5)]
    error = refused(every)
    assert where(error) == (0, 2, None)
    assert "may leave before rank 1 has entered" in str(error)


def test_a_barrier_has_no_blocks() -> None:
    for step in (send(1, 0), seal(0, 0)):
        assert "a barrier has no blocks" in str(refused(made("barrier", 0, ((step,),), ())))


def test_schedules_of_different_collectives_or_in_another_order_are_refused() -> None:
    ring, bruck = plans("allgather", "ring", 2), plans("allgather", "bruck", 2)
    for mixed in ([ring[0], bruck[1]], ring[::-1], ring[:1], [*ring, ring[1]]):
        with pytest.raises(ScheduleError, match="of the same collective"):
            check(mixed)


def test_the_trace_holds_every_message_once_in_order_of_time() -> None:
    for collective, algorithm in EVERY:
        every = plans(collective, algorithm, 6)
        met = [m for m in trace(every) if m.step.kind != Kind.SEAL]
        assert sorted((m.source, m.target) for m in met) == sorted(
            (plan.rank, step.peer) for plan in every for step in plan.sends()
        )
        assert [m.time for m in met] == sorted(m.time for m in met)


def test_a_message_takes_place_when_both_ends_are_ready() -> None:
    # Rank 4 is ready at once, its parent after two other children.
    met = [(m.time, m.source, m.target) for m in trace(plans("reduce", "binomial_tree", 5))]
    assert met == [(0, 1, 0), (0, 3, 2), (1, 2, 0), (2, 4, 0)]
