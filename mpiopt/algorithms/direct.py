"""Turns (rank, size[, root]) into single rounds in which every block goes straight to its place.

A rank talks to all ranks at once, the one after it first, so that no rank is everybody's first
target. The fewest rounds and the most messages; the base of the compressed all-reduce, since a
block is encoded once by each contributor and once by its owner, whatever the rank count.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpiopt.algorithms.registry import generator, per_pair, per_rank
from mpiopt.schedule import Round, Step, add, forward, recv, seal, send


def after(rank: int, size: int) -> list[int]:
    """The other ranks, from the next one up."""
    return [(rank + k) % size for k in range(1, size)]


def before(rank: int, size: int) -> list[int]:
    """The other ranks, from the previous one down: the order in which `after` reaches a rank."""
    return [(rank - k) % size for k in range(1, size)]


@generator("reduce_scatter", "two_shot", per_rank)
def reduce_scatter(rank: int, size: int) -> Iterator[Round]:
    """Every rank sends every owner its block; the owner adds.

    ======  ====  ====  ====  ====
    round      0     1     2     3
    ======  ====  ====  ====  ====
         0  0+x3  1+x3  2+x3  3+x3
    ======  ====  ====  ====  ====

    Rounds: 1. Sent by a rank: (P - 1)/P of the buffer in P - 1 messages. Any P, while P messages
    of n/P are not too many.
    """
    sends = (send(peer, peer) for peer in after(rank, size))
    yield (*sends, *(add(peer, rank) for peer in before(rank, size)))


@generator("allgather", "direct", per_rank)
def allgather(rank: int, size: int) -> Iterator[Round]:
    """Every rank sends every rank its block.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0  1-3  2-0  3-1  0-2
    ======  ===  ===  ===  ===

    Rounds: 1. Sent by a rank: P - 1 times its block. Any P.
    """
    yield (seal(rank),)
    forwards = (forward(peer, rank) for peer in after(rank, size))
    yield (*forwards, *(recv(peer, peer) for peer in before(rank, size)))


@generator("allreduce", "two_shot", per_rank)
def allreduce(rank: int, size: int) -> Iterator[Round]:
    """Direct reduce-scatter, then direct all-gather.

    ======  ====  ====  ====  ====
    round      0     1     2     3
    ======  ====  ====  ====  ====
         0  0+x3  1+x3  2+x3  3+x3
         1   1-3   2-0   3-1   0-2
    ======  ====  ====  ====  ====

    Rounds: 2. Sent by a rank: 2(P - 1)/P of the buffer, the least possible, in 2(P - 1) messages.
    Any P. Two quantisations with a codec, whatever P.
    """
    yield from reduce_scatter(rank, size)
    yield from allgather(rank, size)


@generator("gather", "direct", per_rank)
def gather(rank: int, size: int, root: int) -> Iterator[Round]:
    """Every rank sends the root its block.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0  1-3    .    .    .
    ======  ===  ===  ===  ===

    Rounds: 1. Sent by a rank: its block. Any P, any root; the root receives P - 1 messages.
    """
    if rank == root:
        yield tuple(recv(peer, peer) for peer in after(root, size))
    else:
        yield (seal(rank),)
        yield (forward(root, rank),)


@generator("scatter", "direct", per_rank)
def scatter(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root sends every rank its block.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    .    1    2    3
    ======  ===  ===  ===  ===

    Rounds: 1. Sent by the root: P - 1 blocks in as many messages. Any P, any root.
    """
    if rank != root:
        yield (recv(root, rank),)
    elif size > 1:
        yield (seal((root + 1) % size, size - 1),)
        yield tuple(forward(peer, peer) for peer in after(root, size))


def seal_outgoing(rank: int, size: int) -> Iterator[Step]:
    """Seals of the blocks that a rank has for the ranks below and above itself in an all-to-all."""
    if rank > 0:
        yield seal(rank * size, rank)
    if rank < size - 1:
        yield seal(rank * size + rank + 1, size - 1 - rank)


@generator("alltoall", "direct", per_pair)
def alltoall(rank: int, size: int) -> Iterator[Round]:
    """Every rank sends every rank its block; block s P + d goes from s to d.

    ======  ======  ======  ======  ======
    round        0       1       2       3
    ======  ======  ======  ======  ======
         0  4,8,12  1,9,13  2,6,14  3,7,11
    ======  ======  ======  ======  ======

    Rounds: 1. Sent by a rank: P - 1 blocks in as many messages. Any P, while the network bears P
    messages a rank at once.
    """
    yield tuple(seal_outgoing(rank, size))
    forwards = (forward(peer, rank * size + peer) for peer in after(rank, size))
    yield (*forwards, *(recv(peer, peer * size + rank) for peer in before(rank, size)))
