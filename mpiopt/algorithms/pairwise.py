"""Turns (rank, size) into the pairwise all-to-all: in round k a rank serves the rank k further on.

Block s P + d goes from rank s to rank d; the block of a rank for itself stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpiopt.algorithms.direct import seal_outgoing
from mpiopt.algorithms.registry import generator, per_pair
from mpiopt.schedule import Round, forward, recv


@generator("alltoall", "pairwise", per_pair)
def alltoall(rank: int, size: int) -> Iterator[Round]:
    """One message out and one in, a round.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   12    1    6   11
         1    8   13    2    7
         2    4    9   14    3
    ======  ===  ===  ===  ===

    Rounds: P - 1. Sent by a rank: P - 1 blocks, the least possible. Any P. Never more than one
    message a rank on the way, so long blocks do not get in each other's way.
    """
    yield tuple(seal_outgoing(rank, size))
    for k in range(1, size):
        target, source = (rank + k) % size, (rank - k) % size
        yield forward(target, rank * size + target), recv(source, source * size + rank)
