"""The plain functions: arrays in, arrays out, on any communicator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpiopt
from mpiopt.functions import communicator

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
TOTAL = SIZE * (SIZE - 1) // 2


def test_reductions_give_what_numpy_gives(agree: Any) -> None:
    x = np.arange(6.0).reshape(2, 3) + RANK
    every = np.array([np.arange(6.0).reshape(2, 3) + r for r in range(SIZE)])
    right = [
        np.array_equal(mpiopt.allreduce(x), every.sum(0)),
        np.array_equal(mpiopt.allreduce(x, op="max"), every.max(0)),
        np.array_equal(mpiopt.allreduce(x, algorithm="ring"), every.sum(0)),
    ]
    at_root = mpiopt.reduce(x, root=SIZE - 1)
    right.append(np.array_equal(at_root, every.sum(0)) if RANK == SIZE - 1 else at_root is None)
    agree(all(right), f"{right}")


def test_moves_give_what_numpy_gives(agree: Any) -> None:
    x = np.arange(4) + 10 * RANK
    stacked = np.array([np.arange(4) + 10 * r for r in range(SIZE)])
    gathered = mpiopt.gather(x, root=SIZE - 1)
    out = np.zeros(4, dtype=int)
    mpiopt.scatter(stacked if RANK == 0 else None, out)
    table = 100 * RANK + np.arange(SIZE)
    right = [
        np.array_equal(mpiopt.allgather(x), stacked),
        np.array_equal(gathered, stacked) if RANK == SIZE - 1 else gathered is None,
        np.array_equal(out, stacked[RANK]),
        np.array_equal(mpiopt.alltoall(table), 100 * np.arange(SIZE) + RANK),
        np.array_equal(mpiopt.bcast(x.copy(), root=SIZE - 1), stacked[-1]),
    ]
    mpiopt.barrier()
    agree(all(right), f"{right}")


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (SIZE + 1, 3), (2 * SIZE, 2, 2), (0, 3)])
def test_reduce_scatter_cuts_as_array_split_does(shape: Any, agree: Any) -> None:
    x = np.arange(np.prod(shape), dtype=float).reshape(shape)
    wanted = np.array_split(x * SIZE, SIZE)[RANK]
    got = mpiopt.reduce_scatter(x)
    agree(np.array_equal(got, wanted) and got.shape == wanted.shape, f"{got}, {wanted}")


def test_results_go_where_out_says(agree: Any) -> None:
    x, out = np.full(5, float(RANK)), np.empty(5)
    right = [mpiopt.allreduce(x, out=out) is out, bool(np.all(out == TOTAL))]
    right += [mpiopt.allreduce(x, out=x) is x, bool(np.all(x == TOTAL))]
    table = 100 * RANK + np.arange(SIZE)
    right += [mpiopt.alltoall(table, out=table) is table]
    right += [np.array_equal(table, 100 * np.arange(SIZE) + RANK)]
    agree(all(right), f"{right}")


def test_lists_and_scalars_are_arrays_too(agree: Any) -> None:
    right = [
        np.array_equal(mpiopt.allreduce([1, 2, RANK]), [SIZE, 2 * SIZE, TOTAL]),
        mpiopt.allreduce(2.5) == 2.5 * SIZE,
        mpiopt.allreduce(RANK) == TOTAL,
        np.shape(mpiopt.allreduce(np.float32(1))) == (),
        np.array_equal(mpiopt.allgather(RANK), np.arange(SIZE)),
        np.array_equal(mpiopt.allreduce(np.ones((4, 4))[:, ::2]), np.full((4, 2), SIZE)),
    ]
    agree(all(right), f"{right}")


def test_a_plain_communicator_gets_one_mpiopt_communicator_and_keeps_it(agree: Any) -> None:
    plain = WORLD.Dup()
    first = communicator(plain)
    mpiopt.allreduce(1.0, comm=plain)
    mpiopt.barrier(comm=plain)
    right = [
        communicator(plain) is first,
        communicator(first) is first,
        communicator() is communicator(WORLD),
        communicator() is not first,
        sum(row["calls"] for row in first.ledger.rows()) == 2,
    ]
    agree(all(right), f"{right}")


def test_unknown_ops_are_refused_with_the_known_ones(agree: Any) -> None:
    with pytest.raises(ValueError, match="unknown op 'mean'; one of sum, prod, max"):
        mpiopt.allreduce(1.0, op="mean")
    agree(mpiopt.allreduce(1) == SIZE)
