"""Turns (rank, size) into the dissemination barrier: empty messages to ever more distant ranks."""

from __future__ import annotations

from collections.abc import Iterator

from mpiopt.algorithms.registry import generator, no_data
from mpiopt.schedule import Round, recv, send


@generator("barrier", "dissemination", no_data)
def barrier(rank: int, size: int) -> Iterator[Round]:
    """After round k a rank has heard, directly or not, of the 2^(k+1) - 1 ranks before it.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   <3   <0   <1   <2
         1   <2   <3   <0   <1
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P), the least possible. Messages of a rank: as many, all empty. Any P.
    Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
    """
    width = 1
    while width < size:
        yield send((rank + width) % size, 0, 0), recv((rank - width) % size, 0, 0)
        width *= 2
