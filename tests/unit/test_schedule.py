"""Laws of the vocabulary (cut, step, contract) and of what each generator's schedules cost."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpiopt.schedule
from mpiopt.algorithms import algorithms, block_count, double_tree, schedule
from mpiopt.schedule import (
    COLLECTIVES,
    RECEIVING,
    ROOTED,
    SENDING,
    Kind,
    Schedule,
    Step,
    cut,
    inputs,
    outputs,
    send,
)

EVERY = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
SIZES = range(1, 34)


def every_rank(collective: str, algorithm: str, size: int, root: int = 0) -> list[Schedule]:
    return [schedule(collective, algorithm, size, rank, root) for rank in range(size)]


def ceil_log2(size: int) -> int:
    return next(k for k in range(size) if 2**k >= size)


def floor_log2(size: int) -> int:
    return max(k for k in range(size) if 2**k <= size)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(mpiopt.schedule).failed == 0


@given(st.integers(0, 5000), st.integers(1, 70), st.integers(1, 70))
def test_cut_covers_n_with_aligned_and_even_parts(n: int, blocks: int, align: int) -> None:
    lengths = cut(n, blocks, align)
    assert len(lengths) == blocks
    assert sum(lengths) == n
    starts = [sum(lengths[:block]) for block in range(blocks)]
    assert all(start % align == 0 for start in starts)
    whole = [length // align for length in lengths]
    assert max(whole) - min(whole) <= 1


def test_cut_into_no_blocks_is_empty() -> None:
    assert cut(0, 0) == []


@given(st.data(), st.integers(1, 40))
def test_runs_of_a_step_are_its_indices_in_order(data: st.DataObject, blocks: int) -> None:
    first = data.draw(st.integers(0, blocks - 1))
    step = Step(Kind.SEND, 0, first, data.draw(st.integers(1, blocks)))
    plain = [block for start, count in step.runs(blocks) for block in range(start, start + count)]
    assert plain == step.indices(blocks)
    assert len(set(plain)) == step.count
    assert all(count > 0 for _, count in step.runs(blocks))


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_every_output_is_somebody_s_input(collective: str, algorithm: str) -> None:
    for size in (1, 2, 5, 8):
        blocks, root = block_count(collective, algorithm, size), size // 2
        contract = [(collective, size, rank, root, blocks) for rank in range(size)]
        held = Counter(block for key in contract for block in inputs(*key))
        wanted = Counter(block for key in contract for block in outputs(*key))
        assert set(wanted) == set(held) == set(range(blocks))
        if collective in ("gather", "scatter", "alltoall"):
            assert set(wanted.values()) == {1}


def test_unknown_names_and_ranks_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown collective 'sum'; one of allreduce"):
        algorithms("sum")
    with pytest.raises(ValueError, match="unknown collective"):
        inputs("sum", 2, 0, 0, 1)
    with pytest.raises(ValueError, match="unknown collective"):
        outputs("sum", 2, 0, 0, 1)
    with pytest.raises(ValueError, match=r"unknown algorithm 'magic'; one of .*two_shot"):
        schedule("allreduce", "magic", 2, 0)
    for rank, root in ((2, 0), (-1, 0), (0, 2)):
        with pytest.raises(ValueError, match=r"must be in 0\.\.1"):
            schedule("bcast", "binomial_tree", 2, rank, root)


def test_the_promised_algorithms_are_registered() -> None:
    assert {c: set(algorithms(c)) for c in COLLECTIVES} == {
        "allreduce": {
            "ring",
            "binomial_tree",
            "double_tree",
            "recursive_doubling",
            "recursive_halving",
            "two_shot",
        },
        "reduce": {"binomial_tree", "double_tree", "reduce_scatter_gather"},
        "reduce_scatter": {"ring", "recursive_halving", "two_shot"},
        "bcast": {"binomial_tree", "double_tree", "scatter_allgather"},
        "allgather": {"ring", "recursive_doubling", "bruck", "direct"},
        "gather": {"binomial_tree", "direct"},
        "scatter": {"binomial_tree", "direct"},
        "alltoall": {"pairwise", "direct"},
        "barrier": {"dissemination"},
    }


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_one_rank_communicates_nothing(collective: str, algorithm: str) -> None:
    alone = schedule(collective, algorithm, 1, 0)
    assert alone.messages == alone.round_count == alone.sent([7] * alone.blocks) == 0
    assert all(step.kind == Kind.SEAL for step in alone.steps())


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_seals_have_rounds_of_their_own_and_sends_come_first(
    collective: str, algorithm: str
) -> None:
    for plan in every_rank(collective, algorithm, 7, root=2 if collective in ROOTED else 0):
        for steps in plan.rounds:
            kinds = [step.kind for step in steps]
            assert Kind.SEAL not in kinds or set(kinds) == {Kind.SEAL}
            sending = [kind in SENDING for kind in kinds]
            assert sending == sorted(sending, reverse=True)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_what_is_sent_is_what_is_received(collective: str, algorithm: str) -> None:
    for size in (2, 3, 6, 8, 13):
        out: Counter[tuple[int, int, int, int]] = Counter()
        for plan in every_rank(collective, algorithm, size):
            for step in plan.steps():
                if step.kind in SENDING:
                    out[plan.rank, step.peer, step.first, step.count] += 1
                elif step.kind in RECEIVING:
                    out[step.peer, plan.rank, step.first, step.count] -= 1
        assert not any(out.values())


@pytest.mark.parametrize(("collective", "algorithm"), [(c, a) for c, a in EVERY if c in ROOTED])
def test_another_root_only_renumbers_the_ranks(collective: str, algorithm: str) -> None:
    for size in (2, 5, 8):
        # The ring part of a composed algorithm does not turn with the root, its counts do.
        base = every_rank(collective, algorithm, size)
        for root in range(size):
            for plan in every_rank(collective, algorithm, size, root):
                twin = base[(plan.rank - root) % size]
                assert plan.messages == twin.messages
                assert plan.round_count == twin.round_count
                assert plan.sent([1] * plan.blocks) == twin.sent([1] * plan.blocks)


Exact = Callable[[int, int, list[int]], int]  # rank, size, lengths -> sent


def all_but(offset: int) -> Exact:
    return lambda rank, size, lengths: sum(lengths) - lengths[(rank + offset) % size]


def run_of(first: int, count: int, lengths: list[int]) -> int:
    return sum(lengths[(first + i) % len(lengths)] for i in range(count))


EXACT: dict[tuple[str, str], Exact] = {
    ("reduce_scatter", "ring"): all_but(0),
    ("reduce_scatter", "two_shot"): all_but(0),
    ("allgather", "ring"): all_but(1),
    ("allreduce", "ring"): lambda r, p, n: all_but(0)(r, p, n) + all_but(1)(r, p, n),
    ("allgather", "direct"): lambda r, p, n: (p - 1) * n[r],
    ("allreduce", "two_shot"): lambda r, p, n: sum(n) + (p - 2) * n[r],
    ("allgather", "bruck"): lambda r, p, n: sum(
        run_of(r, min(2**k, p - 2**k), n) for k in range(ceil_log2(p))
    ),
    ("gather", "direct"): lambda r, p, n: n[r] if r else 0,
    ("scatter", "direct"): lambda r, p, n: 0 if r else sum(n[1:]),
    ("scatter", "binomial_tree"): lambda r, p, n: (
        run_of(r, min(r & -r, p - r), n) - n[r] if r else sum(n[1:])
    ),
    ("gather", "binomial_tree"): lambda r, p, n: run_of(r, min(r & -r, p - r), n),
    ("bcast", "scatter_allgather"): lambda r, p, n: (
        EXACT["scatter", "binomial_tree"](r, p, n) + all_but(1)(r, p, n)
    ),
    ("reduce", "reduce_scatter_gather"): lambda r, p, n: (
        all_but(0)(r, p, n) + EXACT["gather", "binomial_tree"](r, p, n)
    ),
    ("reduce", "binomial_tree"): lambda r, p, n: sum(n) if r else 0,
    ("reduce", "double_tree"): lambda r, p, n: sum(n) if r else 0,
    ("barrier", "dissemination"): lambda r, p, n: 0,
}


@pytest.mark.parametrize(("collective", "algorithm"), EXACT)
def test_bytes_of_every_rank_follow_the_closed_formula_at_odd_lengths(
    collective: str, algorithm: str
) -> None:
    for size in SIZES[1:]:
        for n in (0, 1, size - 1, size, size + 1, 1000):
            lengths = cut(n, block_count(collective, algorithm, size))
            for plan in every_rank(collective, algorithm, size):
                expected = EXACT[collective, algorithm](plan.rank, size, lengths)
                assert plan.sent(lengths) == expected, (size, plan.rank, n)


@pytest.mark.parametrize("algorithm", ["pairwise", "direct"])
def test_an_alltoall_sends_the_rank_s_row_but_for_its_own_block(algorithm: str) -> None:
    for size in SIZES:
        lengths = [1 + block % 7 for block in range(size * size)]
        for plan in every_rank("alltoall", algorithm, size):
            row = range(plan.rank * size, (plan.rank + 1) * size)
            expected = sum(lengths[b] for b in row) - lengths[plan.rank * (size + 1)]
            assert plan.sent(lengths) == expected


def test_recursive_algorithms_send_what_a_power_of_two_needs_and_the_fold_adds() -> None:
    for size in SIZES[1:]:
        cores = 2 ** floor_log2(size)
        extras = size - cores
        for plan in every_rank("reduce_scatter", "recursive_halving", size):
            blocks = plan.sent([1] * size)
            paired = plan.rank < 2 * extras
            assert blocks == (size if paired and plan.rank % 2 else size - 1)
        for plan in every_rank("allreduce", "recursive_doubling", size):
            extra = plan.rank < 2 * extras and plan.rank % 2
            host = plan.rank < 2 * extras and not extra
            assert plan.messages == (1 if extra else floor_log2(size) + host)


def test_in_the_double_tree_no_rank_has_children_twice() -> None:
    for size in SIZES:
        for root in (None, *range(0, size, 3)):
            seats = [double_tree.places(rank, size, root) for rank in range(size)]
            for rank, trees in enumerate(seats):
                assert all(len(tree.children) <= 2 for tree in trees)
                if rank != root:
                    assert sum(bool(tree.children) for tree in trees) <= 1
                else:
                    assert all(len(tree.children) <= 1 for tree in trees)
                for half, tree in enumerate(trees):
                    assert all(seats[child][half].parent == rank for child in tree.children)


def test_in_the_double_tree_every_rank_hangs_below_the_top_at_logarithmic_depth() -> None:
    for size in SIZES[1:]:
        for root, deepest in ((None, floor_log2(size)), (0, ceil_log2(size))):
            seats = [double_tree.places(rank, size, root) for rank in range(size)]
            for half in range(2):
                depths = []
                for start in range(size):
                    depth, at = 0, start
                    while seats[at][half].parent >= 0:
                        depth, at = depth + 1, seats[at][half].parent
                        assert depth <= size
                    depths.append(depth)
                assert depths.count(0) == 1
                assert max(depths) == deepest


def test_the_sum_of_steps_is_what_the_counters_count() -> None:
    plan = Schedule("allreduce", "made", 3, 0, 0, 3, ((send(1, 2, 2), send(2, 0)), (send(1, 1),)))
    assert plan.messages == 3
    assert plan.round_count == 2
    assert plan.sent([1, 10, 100]) == (100 + 1) + 1 + 10
