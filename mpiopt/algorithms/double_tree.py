"""Turns (rank, size[, root]) into the rounds of two binary trees, each of which carries one half.

Nodes 1 to m form an in-order binary tree: the lowest set bit of a node is its height, so odd nodes
are leaves. The second tree is the first one moved on by one place, so that the even nodes are its
leaves: a node has children in at most one tree, at most two of them. Node 0, where there is one,
is the root of a rooted collective and stands above both trees.

A rank acts in both trees in the same round: a leaf's message needs nothing and is posted first,
the waiting is always that of the tree in which the rank has children.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mpiopt.algorithms.registry import generator, two
from mpiopt.schedule import Round, add, forward, recv, seal, send


class Place(NamedTuple):
    """A rank's neighbours in the tree of one half; parent -1 means that it is the top."""

    half: int
    parent: int
    children: list[int]


def parent_of(node: int, nodes: int) -> int:
    """The node above in the in-order tree of 1..nodes; 0 for the tree's top."""
    bit = node & -node
    above = node - bit | bit << 1
    return above if above <= nodes else node - bit


def children_of(node: int, nodes: int) -> list[int]:
    """The nodes below in the in-order tree of 1..nodes; of 0, the tree's top."""
    if node == 0:
        return [1 << nodes.bit_length() - 1] if nodes else []
    left = right = (node & -node) >> 1
    while node + right > nodes:
        right >>= 1
    return [node - left] * (left > 0) + [node + right] * (right > 0)


def places(rank: int, size: int, root: int | None = None) -> list[Place]:
    """The rank's place in both trees: of all ranks, or of all but the root, which is above them."""
    nodes, first = (size, 0) if root is None else (size - 1, root + 1)  # node 1 is the rank `first`
    node = rank + 1 if root is None else (rank - root) % size

    def rank_at(seat: int, half: int) -> int:
        """The rank in a seat of a tree; in the second tree everybody sits one seat lower."""
        if seat == 0:
            return -1 if root is None else root
        return (first + (seat - 1 + half) % nodes) % size

    result = []
    for half in range(2):
        seat = (node - 1 - half) % nodes + 1 if node else 0
        parent = rank_at(parent_of(seat, nodes), half) if node else -1
        result.append(Place(half, parent, [rank_at(s, half) for s in children_of(seat, nodes)]))
    return result


def climb(trees: list[Place]) -> Iterator[Round]:
    """Sums climb: what the leaves send and what the children bring, then what follows from it."""
    leaf = [send(t.parent, t.half) for t in trees if not t.children and t.parent >= 0]
    yield (*leaf, *(add(child, t.half) for t in trees for child in t.children))
    yield tuple(send(t.parent, t.half) for t in trees if t.children and t.parent >= 0)


def descend(trees: list[Place]) -> Iterator[Round]:
    """Results descend: first what others below wait for, then the rank's own copy."""
    yield tuple(seal(t.half) for t in trees if t.parent < 0)
    yield tuple(recv(t.parent, t.half) for t in trees if t.children and t.parent >= 0)
    leaf = [recv(t.parent, t.half) for t in trees if not t.children and t.parent >= 0]
    yield (*(forward(child, t.half) for t in trees for child in t.children), *leaf)


@generator("reduce", "double_tree", two)
def reduce(rank: int, size: int, root: int) -> Iterator[Round]:
    """The halves climb two complementary trees of the other ranks, whose tops send to the root.

    ======  ====  ===  ====  ====
    round      0    1     2     3
    ======  ====  ===  ====  ====
         0     .    .  0+x2  1+x2
         1  0-1+    .     .     .
    ======  ====  ===  ====  ====

    Rounds: ceil(log2 P). Sent by a rank: the buffer, once; received: at most the buffer. Any P, any
    root. Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
    and scan", 2009.
    """
    yield from climb(places(rank, size, root))


@generator("bcast", "double_tree", two)
def bcast(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root hands one half to the top of each tree; the halves descend at the same time.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    .    .    0    1
         1    .  0-1    1    0
    ======  ===  ===  ===  ===

    Rounds: ceil(log2 P). Sent by a rank: at most the buffer, once, whatever P. Any P, any root.
    Sanders, Speck and Traeff, 2009.
    """
    yield from descend(places(rank, size, root))


@generator("allreduce", "double_tree", two)
def allreduce(rank: int, size: int) -> Iterator[Round]:
    """Each half climbs a tree of all ranks to its own top and descends the same tree.

    ======  ===  ====  ====  ===
    round     0     1     2    3
    ======  ===  ====  ====  ===
         0    .  0+x2  1+x2    .
         1   1+     .     .   0+
         2    .     0     1    .
         3    0     1     0    1
    ======  ===  ====  ====  ===

    Rounds: 2 floor(log2 P). Sent by a rank: at most twice the buffer, whatever P. Any P. Sanders,
    Speck and Traeff, 2009.
    """
    trees = places(rank, size)
    yield from climb(trees)
    yield from descend(trees)
