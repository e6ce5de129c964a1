"""A message longer than a 32-bit count can say; slow, so only with MPIOPT_SLOW=1."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt import Communicator
from mpiopt.plan import Tuning

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
BYTES = 2_362_232_013  # 2.2 GiB, and odd


@pytest.mark.timeout(400)
@pytest.mark.skipif(os.environ.get("MPIOPT_SLOW") != "1", reason="slow: set MPIOPT_SLOW=1")
@pytest.mark.skipif(SIZE != 2, reason="two ranks are enough, and all that memory allows")
@pytest.mark.parametrize("shared_memory", [True, False], ids=["rings", "messages"])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1 << 40], ids=["segments", "whole"])
def test_a_broadcast_of_more_than_two_gib_arrives_whole(
    segment_bytes: int, shared_memory: bool, agree: Any
) -> None:
    tuning = Tuning(segment_bytes=segment_bytes, shared_memory=shared_memory)
    comm = Communicator(tuning=tuning, timeout=300)
    x = np.zeros(BYTES, dtype=np.uint8)
    marks = np.linspace(0, BYTES - 1, 10_007, dtype=np.int64)
    if RANK == 0:
        x[marks] = np.arange(marks.size) % 251 + 1
    comm.Bcast(x, 0)
    right = np.array_equal(x[marks], np.arange(marks.size) % 251 + 1)
    right = right and int(np.count_nonzero(x)) == np.unique(marks).size
    comm.Free()
    agree(right)
