"""Turns (rank, size) into Bruck's all-gather: every rank's run of blocks doubles in every round.

A rank's run starts at its own block and is cyclic, so no block changes its number or place and
nothing needs to be rotated at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpiopt.algorithms.registry import generator, per_rank
from mpiopt.schedule import Round, forward, recv, seal


@generator("allgather", "bruck", per_rank)
def allgather(rank: int, size: int) -> Iterator[Round]:
    """A rank that has the w blocks from its own on gets the next w from the rank w further on.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    1    2    3    0
         1  2-3  3-0  0-1  1-2
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P), the least possible. Sent by a rank: P - 1 blocks, the least possible.
    Any P; the peers are further away than the ring's. Bruck, Ho, Kipnis, Upfal and Weathersby,
    "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.
    """
    yield (seal(rank),)
    width = 1
    while width < size:
        ahead, behind = (rank + width) % size, (rank - width) % size
        count = min(width, size - width)
        yield forward(behind, rank, count), recv(ahead, ahead, count)
        width *= 2
