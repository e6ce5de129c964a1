"""Turns (rank, size, root) into the rounds of a binomial tree: reduce, bcast, gather, scatter.

Node v is the rank root + v. It has the children v + 1, v + 2, v + 4, ... up to its own lowest set
bit, and the child v + w heads the w nodes from v + w on (fewer where the ranks end). A subtree is
therefore a cyclic range of ranks that starts at its head, and so are its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpiopt.algorithms.registry import generator, one, per_rank
from mpiopt.schedule import Round, add, forward, recv, seal, send


def parent_of(rank: int, size: int, root: int) -> int:
    """The rank above; the root is above itself."""
    node = (rank - root) % size
    return (rank - (node & -node)) % size


def children_of(rank: int, size: int, root: int) -> list[tuple[int, int]]:
    """The ranks below and the sizes of their subtrees, the smallest first."""
    node = (rank - root) % size
    children, width = [], 1
    while not node & width and node + width < size:
        children.append(((rank + width) % size, min(width, size - node - width)))
        width *= 2
    return children


@generator("reduce", "binomial_tree", one)
def reduce(rank: int, size: int, root: int) -> Iterator[Round]:
    """Sums climb to the root, the small subtrees first.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   0+    .   0+    .
         1   0+    .    .    .
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P). Sent by a rank: the buffer, once. Any P, any root. The whole buffer moves
    in every round, so long buffers are better cut. Thakur, Rabenseifner and Gropp, "Optimization
    of collective communication operations in MPICH", 2005.
    """
    for child, _ in children_of(rank, size, root):
        yield (add(child, 0),)
    if rank != root:
        yield (send(parent_of(rank, size, root), 0),)


@generator("bcast", "binomial_tree", one)
def bcast(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root's buffer descends, to the large subtrees first.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    .    .    0    .
         1    .    0    .    0
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P), the least possible. Sent by the root: ceil(log2 P) times the buffer.
    Any P, any root. Thakur, Rabenseifner and Gropp, 2005.
    """
    yield (seal(0) if rank == root else recv(parent_of(rank, size, root), 0),)
    for child, _ in reversed(children_of(rank, size, root)):
        yield (forward(child, 0),)


@generator("allreduce", "binomial_tree", one)
def allreduce(rank: int, size: int) -> Iterator[Round]:
    """Reduce to rank 0, then broadcast from rank 0, over the same tree.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   0+    .   0+    .
         1   0+    .    .    .
         2    .    .    0    .
         3    .    0    .    0
    ======  ===  ===  ===  ===

    Rounds: 2 ceil(log2 P). Sent by rank 0: ceil(log2 P) times the buffer. Any P. With a codec the
    result is quantised once more than the tree is high.
    """
    yield from reduce(rank, size, 0)
    yield from bcast(rank, size, 0)


@generator("gather", "binomial_tree", per_rank)
def gather(rank: int, size: int, root: int) -> Iterator[Round]:
    """Ranges of blocks climb and double; a subtree's range starts at its head's own block.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    1    .    3    .
         1  2-3    .    .    .
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P). Sent by a rank: at most half of the result. Any P, any root. A block
    passes through up to log2 P ranks, which need room for it. The root's own block stays exact.
    """
    if rank != root:
        yield (seal(rank),)
    held = 1
    for child, count in children_of(rank, size, root):
        yield (recv(child, child, count),)
        held += count
    if rank != root:
        yield (forward(parent_of(rank, size, root), rank, held),)


@generator("scatter", "binomial_tree", per_rank)
def scatter(rank: int, size: int, root: int) -> Iterator[Round]:
    """Ranges of blocks descend and halve, to the large subtrees first.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    .    .  2-3    .
         1    .    1    .    3
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P), the least possible. Sent by the root: P - 1 blocks. Any P, any root.
    """
    if rank == root and size > 1:
        yield (seal((root + 1) % size, size - 1),)
    yield from spread(rank, size, root)


def spread(rank: int, size: int, root: int) -> Iterator[Round]:
    """The scatter's rounds alone, for blocks that the root has sealed already."""
    children = children_of(rank, size, root)
    if rank != root:
        held = 1 + sum(count for _, count in children)
        yield (recv(parent_of(rank, size, root), rank, held),)
    for child, count in reversed(children):
        yield (forward(child, child, count),)
