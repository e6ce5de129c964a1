"""Turns (rank, size, root) into rooted collectives for long buffers, made of two phases each.

A block is 1/size of the buffer. The ring does the half in which everybody works, at any size; a
binomial tree does the half that starts or ends at the root.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpiopt.algorithms import binomial_tree, ring
from mpiopt.algorithms.registry import generator, per_rank
from mpiopt.schedule import Round, seal


@generator("bcast", "scatter_allgather", per_rank)
def bcast(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root scatters its buffer over a binomial tree, the ring gathers it everywhere.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    .    .  2-3    .
         1    .    1    .    3
         2    3    0    1    2
         3    2    3    0    1
         4    1    2    3    0
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P) + P - 1. Sent by the root: 2(P - 1)/P of the buffer. Any P, any root, for
    long buffers. Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor collective
    communication library", 1994.
    """
    if rank == root:
        yield (seal(0, size),)
    yield from binomial_tree.spread(rank, size, root)
    yield from ring.circulate(rank, size)


@generator("reduce", "reduce_scatter_gather", per_rank)
def reduce(rank: int, size: int, root: int) -> Iterator[Round]:
    """The ring leaves each rank a finished block, a binomial tree gathers them at the root.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   2+   3+   0+   1+
         1   1+   2+   3+   0+
         2   0+   1+   2+   3+
         3    1    .    3    .
         4  2-3    .    .    .
    ======  ===  ===  ===  ===

    Rounds: P - 1 + ceil(log2 P). Sent by a rank: at most 3/2 of the buffer. Any P, any root, for
    long buffers. Rabenseifner, 2004, with a ring, which needs no folding.
    """
    yield from ring.reduce_scatter(rank, size)
    yield from binomial_tree.gather(rank, size, root)
