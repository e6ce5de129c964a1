"""All dtypes and ops against NumPy, and the law that every rank ends with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt import Communicator
from mpiopt.algorithms import algorithms
from mpiopt.kernels.reference import REDUCTIONS
from mpiopt.plan import Tuning

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
OPS = {
    "sum": MPI.SUM,
    "prod": MPI.PROD,
    "max": MPI.MAX,
    "min": MPI.MIN,
    "land": MPI.LAND,
    "lor": MPI.LOR,
    "lxor": MPI.LXOR,
    "band": MPI.BAND,
    "bor": MPI.BOR,
    "bxor": MPI.BXOR,
}
INTEGERS = "bhilqBHILQ"
DEFINED = {
    **dict.fromkeys(("sum", "prod"), INTEGERS + "efdFDg"),
    **dict.fromkeys(("max", "min"), INTEGERS + "efdg"),
    **dict.fromkeys(("land", "lor", "lxor"), INTEGERS + "?"),
    **dict.fromkeys(("band", "bor", "bxor"), INTEGERS),
}
N = 131


@pytest.fixture(scope="module", params=[True, False], ids=["rings", "messages"])
def comm(request: Any) -> Iterator[Any]:
    made = Communicator(tuning=Tuning(shared_memory=request.param), timeout=30)
    yield made
    made.Free()


def same_everywhere(data: Any) -> bool:
    return len(set(MPI.COMM_WORLD.allgather(data.tobytes()))) == 1


def contribution(op: str, char: str, rank: int, n: int = N) -> Any:
    """Values whose reduction is exact in any order."""
    index = np.arange(n)
    if op == "prod":
        return np.where((index + rank) % 5 == 0, 2, 1).astype(char)
    if op in ("land", "lor", "lxor"):
        return ((index >> (rank % 4)) % 3).astype(char)
    return ((index * 7 + rank * 3) % 11).astype(char)


@pytest.mark.parametrize("op", OPS)
def test_every_dtype_and_op_gives_numpy_s_result(op: str, comm: Any, agree: Any) -> None:
    wrong = []
    for char in DEFINED[op]:
        vectors = [contribution(op, char, rank) for rank in range(SIZE)]
        wanted = reduce(lambda a, b: REDUCTIONS[op](a, b).astype(char), vectors)
        got = np.zeros(N, dtype=char)
        comm.Allreduce(vectors[RANK], got, OPS[op])
        if op in ("land", "lor", "lxor") and SIZE == 1:
            # MPI leaves one rank's value alone; whether 2 is True or 1 is not said.
            got, wanted = got.astype(bool), wanted.astype(bool)
        if not np.array_equal(got, wanted):
            wrong.append((char, got[:8], wanted[:8]))
    agree(not wrong, f"{wrong}")


def test_integers_wrap_around(comm: Any, agree: Any) -> None:
    wrong = []
    for char in INTEGERS:
        mine = np.full(9, np.iinfo(char).max, dtype=char)
        for op, function in (("sum", np.add), ("prod", np.multiply)):
            with np.errstate(over="ignore"):
                wanted = reduce(function, [mine] * SIZE)
            got = np.empty_like(mine)
            comm.Allreduce(mine, got, OPS[op])
            if not np.array_equal(got, wanted):
                wrong.append((char, op))
    agree(not wrong, f"{wrong}")


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan])


@pytest.mark.parametrize("op", ["max", "min", "sum", "prod"])
def test_nans_and_signed_zeros_are_the_same_bits_everywhere(op: str, comm: Any, agree: Any) -> None:
    failures = []
    for algorithm, char in product(algorithms("allreduce"), "efd"):
        draws = np.random.default_rng(RANK)
        mine = draws.choice(SPECIAL, 400).astype(char)
        # NaNs with a payload of their own: whose survives must be settled alike everywhere.
        mine.view(f"u{mine.itemsize}")[np.isnan(mine)] |= RANK + 1
        got = np.empty_like(mine)
        comm.Allreduce(mine, got, OPS[op], algorithm)
        everybody = np.array(MPI.COMM_WORLD.allgather(mine))
        with np.errstate(all="ignore"):
            wanted = REDUCTIONS[op].reduce(everybody, axis=0)
        if not same_everywhere(got):
            failures.append(f"{algorithm}, {char}: bits differ between ranks")
        if op in ("max", "min") and not np.array_equal(got, wanted, equal_nan=True):
            failures.append(f"{algorithm}, {char}: not NumPy's values")
    agree(not failures, f"{failures}")


@pytest.mark.parametrize("algorithm", algorithms("allreduce"))
def test_every_rank_holds_the_same_bits_every_time(algorithm: str, comm: Any, agree: Any) -> None:
    """Sums that are not exact, so that every order of adding gives other bits."""
    failures = []
    for char, n in (("f", 1), ("f", SIZE + 1), ("d", 1000), ("F", 777), ("e", 64), ("D", 40_000)):
        draws = np.random.default_rng([RANK, n])
        mine = (draws.normal(size=n) * 10.0 ** draws.integers(-3, 3, n)).astype(char)
        results = []
        for _ in range(3):
            got = np.empty_like(mine)
            comm.Allreduce(mine, got, MPI.SUM, algorithm)
            results.append(got.tobytes())
        in_place = mine.copy()
        comm.Allreduce(MPI.IN_PLACE, in_place, MPI.SUM, algorithm)
        if len(set(results)) != 1:
            failures.append(f"{char} x {n}: another run, other bits")
        if not same_everywhere(got):
            failures.append(f"{char} x {n}: another rank, other bits")
        if in_place.tobytes() != results[0]:
            failures.append(f"{char} x {n}: in place, other bits")
    agree(not failures, f"{failures}")


def test_allreduce_has_the_same_bits_on_both_transports(comm: Any, agree: Any) -> None:
    other = Communicator(tuning=Tuning(segment_bytes=1024, lanes=2, shared_memory=False))
    draws, wrong = np.random.default_rng(RANK), []
    for algorithm in algorithms("allreduce"):
        mine = draws.normal(size=5003)
        one, two = np.empty_like(mine), np.empty_like(mine)
        comm.Allreduce(mine, one, MPI.SUM, algorithm)
        other.Allreduce(mine, two, MPI.SUM, algorithm)
        if one.tobytes() != two.tobytes():
            wrong.append(algorithm)
    other.Free()
    agree(not wrong, f"other bits: {wrong}")
