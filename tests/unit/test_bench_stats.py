"""Laws of the benchmark's numbers: sizes, quantiles, rates, verdicts."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiopt.bench import stats
from mpiopt.bench.sizes import format_size, parse_size, sweep
from mpiopt.schedule import COLLECTIVES

times = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)
ratios = st.dictionaries(st.integers(1, 1 << 40), st.floats(1e-3, 1e3), min_size=1)


@given(st.integers(0, 1 << 50))
def test_a_formatted_size_parses_back_to_itself(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "M", "-8", "1.5K", "8X", "8 8"])
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="64M"):
        parse_size(text)


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(2, 100))
def test_a_sweep_rises_by_its_factor_from_begin_to_end(begin: int, extra: int, factor: int) -> None:
    end = begin + extra
    sizes = sweep(begin, end, factor)
    assert (sizes[0], sizes[-1]) == (begin if extra else end, end)
    assert sizes == sorted(set(sizes))
    assert all(size == begin * factor**i for i, size in enumerate(sizes[:-1]))


@pytest.mark.parametrize(("begin", "end", "factor"), [(0, 8, 2), (16, 8, 2), (8, 16, 1)])
def test_a_sweep_that_cannot_end_is_refused(begin: int, end: int, factor: int) -> None:
    with pytest.raises(ValueError, match=str(begin) if factor > 1 else "factor"):
        sweep(begin, end, factor)


@given(times)
def test_quantiles_are_ordered_and_within_the_trials(times_s: list[float]) -> None:
    found = stats.spread(times_s)
    ordered = [found.min_us, found.p10_us, found.median_us, found.p90_us, found.max_us]
    slack = 1 + 1e-12
    assert all(low <= high * slack for low, high in pairwise(ordered))
    assert found.min_us == pytest.approx(min(times_s) * 1e6)
    assert found.max_us == pytest.approx(max(times_s) * 1e6)
    assert found.samples == len(times_s)


@given(times, st.randoms())
def test_the_order_of_trials_does_not_matter(times_s: list[float], random: object) -> None:
    shuffled = list(times_s)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert stats.spread(shuffled) == stats.spread(times_s)


def test_one_outlier_does_not_move_the_median() -> None:
    assert stats.spread([1e-6] * 10 + [1.0]).median_us == pytest.approx(1.0)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_moves_nothing_and_many_ranks_approach_the_limit(collective: str) -> None:
    limit = {"allreduce": 2, "barrier": 0}.get(collective, 1)
    assert stats.bus_factor(collective, 10**9) == pytest.approx(limit)
    if collective not in ("reduce", "bcast"):
        assert stats.bus_factor(collective, 1) == 0


def test_allreduce_counts_as_reduce_scatter_and_allgather() -> None:
    for ranks in range(1, 18):
        halves = stats.bus_factor("reduce_scatter", ranks) + stats.bus_factor("allgather", ranks)
        assert stats.bus_factor("allreduce", ranks) == pytest.approx(halves)


def test_a_gigabyte_in_a_second_is_one() -> None:
    assert stats.rate_gbps(10**9, 1e6) == pytest.approx(1.0)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1))
def test_the_geometric_mean_of_inverses_is_the_inverse(values: list[float]) -> None:
    mean = stats.geometric_mean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert stats.geometric_mean(1 / value for value in values) == pytest.approx(1 / mean)


@given(ratios)
def test_every_size_is_a_win_a_loss_or_even(found: dict[int, float]) -> None:
    verdict = stats.verdict(found)
    assert sorted((*verdict.wins, *verdict.even, *verdict.losses)) == sorted(found)
    assert verdict.best[1] == max(found.values())
    assert verdict.worst[1] == min(found.values())
    assert not set(verdict.wins) & set(verdict.losses)


@given(st.floats(1e-9, 10), st.floats(1e-9, 1e-2))
def test_a_batch_lasts_as_long_as_a_trial_should_unless_it_is_at_its_limit(
    call_s: float, trial_s: float
) -> None:
    batch = stats.batch_size(call_s, trial_s)
    assert batch == 1000 or batch * call_s >= trial_s * (1 - 1e-9)
    assert batch == 1 or (batch - 1) * call_s < trial_s


@given(st.floats(1e-6, 10), st.floats(0, 100))
def test_trials_fit_their_share_of_time_within_bounds(trial_s: float, share_s: float) -> None:
    count = stats.trial_count(trial_s, share_s, least=11, most=2001)
    assert 11 <= count <= 2001
    assert count == 11 or count * trial_s <= share_s * (1 + 1e-9)


def test_numbers_from_nothing_are_errors() -> None:
    with pytest.raises(ValueError, match="no trials"):
        stats.spread([])
    with pytest.raises(ValueError, match="no ratios"):
        stats.geometric_mean([])
    assert math.isclose(stats.geometric_mean([4.0]), 4.0)
