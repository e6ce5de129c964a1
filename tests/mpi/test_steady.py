"""A repeated call makes nothing new: no memory, no plan, no scratch."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt import Communicator
from mpiopt.plan import Tuning

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
TRANSPORTS = [pytest.param(True, id="rings"), pytest.param(False, id="messages")]
CALLS = 1000


@pytest.mark.parametrize("shared_memory", TRANSPORTS)
def test_a_repeated_call_allocates_nothing(shared_memory: bool, agree: Any) -> None:
    comm = Communicator(tuning=Tuning(shared_memory=shared_memory), timeout=60)
    x, y = np.ones(100, dtype=np.float32), np.empty(100, dtype=np.float32)
    whole = np.empty(100 * SIZE, dtype=np.float32)

    def once() -> None:
        comm.Allreduce(x, y)
        comm.Reduce(x, y, MPI.SUM, 0)
        comm.Bcast(y, 0)
        comm.Allgather(x, whole)
        comm.Barrier()

    for _ in range(10):
        once()
    engine = comm._front
    scratch, plans = engine._scratch.ctypes.data, len(engine._plans)
    gc.collect()
    tracemalloc.start()
    once()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for _ in range(CALLS // 5):
        once()
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    same = scratch == engine._scratch.ctypes.data and plans == len(engine._plans)
    comm.Free()
    grown = after - before
    agree(
        same and grown < 1024 and peak - before < 4096,
        f"grown {grown} bytes, peak {peak - before} bytes, same scratch and plans: {same}",
    )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_memory_stays_as_it_is_over_thousands_of_calls(comm: Any, agree: Any) -> None:
    x, y = np.ones(5000), np.empty(5000)
    table = np.ones((SIZE, 64))

    def some(calls: int) -> None:
        for _ in range(calls):
            comm.Allreduce(x, y)
            comm.Allreduce([x, 100, MPI.DOUBLE], [y, 100, MPI.DOUBLE])  # never a hot call
            comm.Alltoall(MPI.IN_PLACE, table)
            comm.Iallreduce(MPI.IN_PLACE, x[:10]).Wait()

    some(100)
    gc.collect()
    before = resident_bytes()
    some(500)
    gc.collect()
    grown = resident_bytes() - before
    agree(grown < 2 << 20, f"grown by {grown} bytes")


def test_plans_do_not_pile_up(comm: Any, agree: Any) -> None:
    for n in range(600):
        comm.Bcast(np.zeros(n + 1, dtype=np.uint8))
    engine = comm._front
    agree(len(engine._plans) <= 256 and len(engine._at) == len(engine._plans))


def test_communicators_do_not_pile_up(agree: Any) -> None:
    """Making and freeing many leaves neither threads nor MPI's communicators behind."""
    before = set(threading.enumerate())
    for _ in range(40):
        made = Communicator(timeout=30)
        made.Iallreduce(MPI.IN_PLACE, np.ones(3)).Wait()
        made.Free()
    running = set(threading.enumerate()) - before
    agree(not running, f"{running}")
