"""Averages a vector over all ranks, checks the result, and says what it cost.

mpiexec -n 4 python jobs/allreduce.py --count 1000000
sbatch jobs/allreduce.sbatch
"""

from __future__ import annotations

import argparse

import numpy as np
from mpi4py import MPI

import mpiopt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="float32 elements (1000000)")
    parser.add_argument("--algorithm", default="auto", help="auto, mpi, ring, two_shot, ...")
    options = parser.parse_args()

    comm = mpiopt.Communicator(MPI.COMM_WORLD)
    x = np.full(options.count, comm.rank, dtype=np.float32)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=options.algorithm)
    x /= comm.size
    right = bool(np.all(x == (comm.size - 1) / 2))
    if not comm.allreduce(right, MPI.LAND):
        raise SystemExit(f"rank {comm.rank}: the mean is {x[:3]}, not {(comm.size - 1) / 2}")
    if comm.rank == 0:
        print(f"mean {x[0] if x.size else 'of nothing'} on {comm.size} ranks")
        for row in comm.ledger.rows():
            print(", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
