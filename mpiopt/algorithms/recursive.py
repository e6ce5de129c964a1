"""Turns (rank, size) into rounds of exchange at distances that double or halve.

The algorithms need a power of two. Other sizes are *folded*: of the first 2E ranks, where E is
what size exceeds the power of two by, each odd one (*extra*) hands its data to the even one before
it (its *host*), and is handed the result at the end. Hosts and the ranks after 2E are the *core*.
Core c is the rank c + min(c, E), and owns the blocks from that number up to the next core's, so a
run of cores owns one run of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mpiopt.algorithms.registry import generator, one, per_rank
from mpiopt.schedule import Round, Step, add, forward, recv, seal, send


class Fold:
    """How `size` ranks are folded on a power of two, seen from one rank."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.cores = 1 << size.bit_length() - 1
        self.extras = size - self.cores
        paired = rank < 2 * self.extras
        self.is_extra, self.is_host = paired and rank % 2 == 1, paired and rank % 2 == 0
        self.core = rank // 2 if paired else rank - self.extras

    def place(self, core: int) -> int:
        """The rank of a core, which is also the number of its first block."""
        return core + min(core, self.extras)

    def owned(self, core: int, width: int) -> tuple[int, int]:
        """First block and block count of the aligned run of `width` cores around a core."""
        first = core & -width
        return self.place(first), self.place(first + width) - self.place(first)

    def hand_in(
        self, give: Callable[[int, int, int], Step], take: Callable[[int, int, int], Step], *at: int
    ) -> Iterator[Round]:
        """Blocks `at` (first, count) pass from an extra rank to its host."""
        if self.is_extra:
            yield (give(self.rank - 1, *at),)
        elif self.is_host:
            yield (take(self.rank + 1, *at),)

    def hand_out(self, *at: int) -> Iterator[Round]:
        """Finished blocks `at` (first, count) pass from a host to its extra rank."""
        if self.is_extra:
            yield (recv(self.rank - 1, *at),)
        elif self.is_host:
            yield (forward(self.rank + 1, *at),)

    def peers(self, widths: Iterator[int]) -> Iterator[tuple[int, int, int]]:
        """For each width (width, peer core, peer rank); nothing on an extra rank."""
        if not self.is_extra:
            for width in widths:
                yield width, self.core ^ width, self.place(self.core ^ width)

    def rising(self) -> Iterator[int]:
        return (1 << k for k in range(self.cores.bit_length() - 1))

    def falling(self) -> Iterator[int]:
        return (self.cores >> k for k in range(1, self.cores.bit_length()))


def halve(fold: Fold) -> Iterator[Round]:
    """Cores keep the half of their blocks on their own side and send the other half across."""
    for width, peer, rank in fold.peers(fold.falling()):
        yield send(rank, *fold.owned(peer, width)), add(rank, *fold.owned(fold.core, width))


def double(fold: Fold) -> Iterator[Round]:
    """Cores exchange all that they have with ever more distant cores."""
    for width, peer, rank in fold.peers(fold.rising()):
        yield forward(rank, *fold.owned(fold.core, width)), recv(rank, *fold.owned(peer, width))


@generator("allreduce", "recursive_doubling", one)
def allreduce_doubling(rank: int, size: int) -> Iterator[Round]:
    """Ranks at distance 1, 2, 4, ... exchange and add their sums.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0   0+   0+   0+   0+
         1   0+   0+   0+   0+
    ======  ===  ===  ===  ===

    Rounds: log2 P, the least possible, each with the whole buffer; where P is no power of two,
    floor(log2 P) + 2. Any P, for short buffers. Ranks add the same numbers in the same pairs, so
    exact data ends with the same bits everywhere; a lossy codec would leave every rank its own.
    Thakur, Rabenseifner and Gropp, 2005.
    """
    fold = Fold(rank, size)
    yield from fold.hand_in(send, add, 0, 1)
    for _, _, peer in fold.peers(fold.rising()):
        yield send(peer, 0), add(peer, 0)
    if not fold.is_extra:
        yield (seal(0),)
    yield from fold.hand_out(0, 1)


@generator("reduce_scatter", "recursive_halving", per_rank)
def reduce_scatter_halving(rank: int, size: int) -> Iterator[Round]:
    """Half of the blocks cross the greatest distance, a quarter half of it, and so on.

    ======  ====  ====  ====  ====
    round      0     1     2     3
    ======  ====  ====  ====  ====
         0  0-1+  0-1+  2-3+  2-3+
         1    0+    1+    2+    3+
    ======  ====  ====  ====  ====

    Rounds: log2 P; where P is no power of two, floor(log2 P) + 2. Sent by a rank: (P - 1)/P of the
    buffer; by an extra rank all of it. Any P. Thakur, Rabenseifner and Gropp, 2005.
    """
    fold = Fold(rank, size)
    yield from fold.hand_in(send, add, 0, size)
    yield from halve(fold)
    if fold.is_host:
        yield (seal(rank + 1),)
    yield from fold.hand_out(rank | 1, 1)


@generator("allgather", "recursive_doubling", per_rank)
def allgather_doubling(rank: int, size: int) -> Iterator[Round]:
    """Ranks at distance 1, 2, 4, ... exchange all the blocks that they have.

    ======  ===  ===  ===  ===
    round     0    1    2    3
    ======  ===  ===  ===  ===
         0    1    0    3    2
         1  2-3  2-3  0-1  0-1
    ======  ===  ===  ===  ===

    Rounds: log2 P; where P is no power of two, floor(log2 P) + 2. Sent by a rank: (P - 1)/P of the
    result; by a host up to 12/5 of it. Any P. Thakur, Rabenseifner and Gropp, 2005.
    """
    fold = Fold(rank, size)
    yield (seal(rank),)
    yield from fold.hand_in(forward, recv, rank | 1, 1)
    yield from double(fold)
    yield from fold.hand_out(((rank | 1) + 1) % size, size - 1)


@generator("allreduce", "recursive_halving", per_rank)
def allreduce_halving(rank: int, size: int) -> Iterator[Round]:
    """Halving reduce-scatter among the cores, then doubling all-gather.

    ======  ====  ====  ====  ====
    round      0     1     2     3
    ======  ====  ====  ====  ====
         0  0-1+  0-1+  2-3+  2-3+
         1    0+    1+    2+    3+
         2     1     0     3     2
         3   2-3   2-3   0-1   0-1
    ======  ====  ====  ====  ====

    Rounds: 2 log2 P; where P is no power of two, 2 floor(log2 P) + 2. Sent by a rank: 2(P - 1)/P of
    the buffer, the least possible, at a power of two; else by a host up to 17/5 of the buffer.
    Any P. Rabenseifner, "Optimization of collective reduction operations", 2004.
    """
    fold = Fold(rank, size)
    yield from fold.hand_in(send, add, 0, size)
    yield from halve(fold)
    if not fold.is_extra:
        yield (seal(*fold.owned(fold.core, 1)),)
    yield from double(fold)
    yield from fold.hand_out(0, size)
