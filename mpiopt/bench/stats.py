"""Turns trial times into the numbers of a row: quantiles, rates, ratios. Pure functions.

*algbw* is the collective's size over its time. *busbw* multiplies it by the factor that makes it
comparable with the link's rate whatever the rank count, as nccl-tests defines it; both count
logical bytes, compressed or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

EVEN = 0.02  # ratios this close to 1 are neither wins nor losses


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of one contender's trial times, in microseconds."""

    median_us: float
    p10_us: float
    p90_us: float
    min_us: float
    max_us: float
    samples: int


def spread(times_s: Sequence[float]) -> Spread:
    if not len(times_s):
        raise ValueError("no trials; at least one is needed")
    times_us = np.asarray(times_s, dtype=np.float64) * 1e6
    low, p10, median, p90, high = np.quantile(times_us, (0, 0.1, 0.5, 0.9, 1)).tolist()
    return Spread(median, p10, p90, low, high, len(times_us))


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw."""
    match collective:
        case "allreduce":
            return 2 * (ranks - 1) / ranks
        case "reduce_scatter" | "allgather" | "gather" | "scatter" | "alltoall":
            return (ranks - 1) / ranks
        case "reduce" | "bcast":
            return 1.0
        case "barrier":
            return 0.0
    raise ValueError(f"no bus bandwidth is defined for {collective!r}")


def rate_gbps(size_bytes: int, time_us: float) -> float:
    """10**9 bytes a second."""
    return size_bytes / time_us / 1e3 if time_us > 0 else 0.0


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    if not logs:
        raise ValueError("no ratios; at least one is needed")
    return math.exp(math.fsum(logs) / len(logs))


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one contender did against MPI's own over a sweep; sizes in bytes."""

    mean: float
    wins: tuple[int, ...]
    even: tuple[int, ...]
    losses: tuple[int, ...]
    best: tuple[int, float]
    worst: tuple[int, float]


def verdict(ratios: Mapping[int, float]) -> Verdict:
    """Judge vs_mpi by size: a win above 1 + EVEN, a loss below 1 - EVEN."""
    ordered = sorted(ratios.items(), key=lambda item: item[1])
    return Verdict(
        mean=geometric_mean(ratios.values()),
        wins=tuple(size for size, ratio in ratios.items() if ratio > 1 + EVEN),
        even=tuple(size for size, ratio in ratios.items() if abs(ratio - 1) <= EVEN),
        losses=tuple(size for size, ratio in ratios.items() if ratio < 1 - EVEN),
        best=ordered[-1],
        worst=ordered[0],
    )


def batch_size(call_s: float, trial_s: float, limit: int = 1000) -> int:
    """Back-to-back calls that make a trial last `trial_s`, so that the clock does not matter."""
    if call_s <= 0:
        return limit
    return max(1, min(limit, math.ceil(trial_s / call_s)))


def trial_count(trial_s: float, share_s: float, least: int, most: int) -> int:
    """Trials of `trial_s` (all contenders together) that fit in `share_s`, within bounds."""
    if trial_s <= 0:
        return most
    return max(least, min(most, int(share_s / trial_s)))
