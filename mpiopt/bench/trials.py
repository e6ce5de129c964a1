"""Turns calls into times: interleaved, shuffled trials of all contenders in one run.

A *contender* is one way to do the collective: MPI's own, or one of our algorithms. A *trial* is a
batch of back-to-back calls of one contender, after a barrier and one untimed call, so that skew
and caches are alike for all; its time is the largest over ranks, for one call. A *block* is one
trial of each contender in random order, the same on all ranks: drift of the machine hits all
contenders alike. Every number that decides what to run next is agreed on by all ranks first.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter

import numpy as np
from mpi4py import MPI

from mpiopt.bench.stats import batch_size, trial_count
from mpiopt.bench.work import Call

TRIAL_S = 200e-6
CALIBRATION_CALLS = 5
LEAST_TRIALS, MOST_TRIALS = 11, 2001


@dataclass(frozen=True, slots=True)
class Plan:
    """How often to call: `batch` calls a trial, `trials` trials of each contender."""

    batch: int
    trials: int


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def trial(comm: MPI.Intracomm, call: Call, batch: int) -> float:
    """Seconds for one of `batch` back-to-back calls, on this rank."""
    comm.Barrier()
    call()
    start = perf_counter()
    for _ in repeat(None, batch):
        call()
    return (perf_counter() - start) / batch


def calibrate(
    comm: MPI.Intracomm, calls: Mapping[str, Call], warmup: int, share_s: float, trials: int | None
) -> Plan:
    """Warm up, then choose batch and trial count; `trials` overrides the count."""
    measured = []
    for call in calls.values():
        for _ in range(warmup):
            call()
        # Twice: a first guess tells how many calls give a second that the clock can resolve.
        first = _agreed(comm, trial(comm, call, 1))
        again = min(CALIBRATION_CALLS, batch_size(first, TRIAL_S))
        measured.append(_agreed(comm, trial(comm, call, again)))
    batch = batch_size(min(measured), TRIAL_S)
    block_s = sum(measured) * (batch + 1)
    return Plan(batch, trials or trial_count(block_s, share_s, LEAST_TRIALS, MOST_TRIALS))


def measure(
    comm: MPI.Intracomm, calls: Mapping[str, Call], plan: Plan, seed: int
) -> dict[str, list[float]]:
    """Seconds of each trial of each contender: the slowest rank's."""
    order = random.Random(seed)
    names = list(calls)
    local: dict[str, list[float]] = {name: [] for name in names}
    with no_garbage_collection():
        for _ in range(plan.trials):
            order.shuffle(names)
            for name in names:
                local[name].append(trial(comm, calls[name], plan.batch))
    times = np.array([local[name] for name in calls])
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return dict(zip(calls, times.tolist(), strict=True))


def _agreed(comm: MPI.Intracomm, seconds: float) -> float:
    return float(comm.allreduce(seconds, MPI.MAX))
