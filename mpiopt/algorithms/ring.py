"""Turns (rank, size) into the ring's rounds: every rank talks to its two neighbours only.

A block is 1/size of the buffer. Reduce-scatter and all-gather take size - 1 rounds each, in every
one of which a rank sends one block to the right and receives one from the left.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpiopt.algorithms.registry import generator, per_rank
from mpiopt.schedule import Round, add, forward, recv, seal, send


@generator("reduce_scatter", "ring", per_rank)
def reduce_scatter(rank: int, size: int) -> Iterator[Round]:
    """Each block travels once around and ends, complete, at the rank of its number.

    Rows are rounds, columns ranks; `b+` means that the partial sum of block b arrives there.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   2+   3+   0+   1+
         1   1+   2+   3+   0+
         2   0+   1+   2+   3+
    ======  ===  ===  ===  ===

    Rounds: P - 1. Sent by a rank: (P - 1)/P of the buffer. Any P; the order of summation differs
    from block to block. Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
    """
    right, left = (rank + 1) % size, (rank - 1) % size
    for k in range(size - 1):
        yield send(right, (rank - 1 - k) % size), add(left, (rank - 2 - k) % size)


@generator("allgather", "ring", per_rank)
def allgather(rank: int, size: int) -> Iterator[Round]:
    """Each rank passes on what it received last.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    3    0    1    2
         1    2    3    0    1
         2    1    2    3    0
    ======  ===  ===  ===  ===

    Rounds: P - 1. Sent by a rank: P - 1 blocks. Any P.
    """
    yield (seal(rank),)
    yield from circulate(rank, size)


def circulate(rank: int, size: int) -> Iterator[Round]:
    """The all-gather's rounds alone, for blocks that are sealed or received already."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for k in range(size - 1):
        yield forward(right, (rank - k) % size), recv(left, (rank - 1 - k) % size)


@generator("allreduce", "ring", per_rank)
def allreduce(rank: int, size: int) -> Iterator[Round]:
    """Reduce-scatter around the ring, then all-gather around the ring.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   2+   3+   0+   1+
         1   1+   2+   3+   0+
         2   0+   1+   2+   3+
         3    3    0    1    2
         4    2    3    0    1
         5    1    2    3    0
    ======  ===  ===  ===  ===

    Rounds: 2(P - 1). Sent by a rank: 2(P - 1)/P of the buffer, the least possible. Any P.
    """
    yield from reduce_scatter(rank, size)
    yield from allgather(rank, size)
