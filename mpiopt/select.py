"""Turns (collective, ranks, bytes) into the algorithm that `auto` runs.

Until a tuning table is there, the rules are the usual ones: few rounds while latency dominates, few
bytes when bandwidth does. All ranks see the same arguments, so all choose alike; where a rank does
not know the bytes (the v-forms), the choice must not depend on them.
"""

from __future__ import annotations

from mpiopt.algorithms import algorithms

AUTO = "auto"
# Up to these sizes a buffer goes whole, in few rounds; above, in parts.
_SHORT = 16 << 10
_MEDIUM = 256 << 10
# Through the rings of a node two ranks do best to exchange whole buffers, which stream through the
# cache; but for those that the last cache holds and the others do not, where each rank's reading
# only half of the other's memory moves less. Measured with two ranks, as all of these.
_HELD_BY_THE_LAST_CACHE = range((4 << 20) + 1, 24 << 20)


def choose(collective: str, size: int, nbytes: int, shared: bool = False) -> str:
    """The name of the algorithm for a buffer of nbytes on `size` ranks.

    The buffer is the whole vector of a reduction or broadcast, and the gathered, scattered or
    exchanged data of all ranks otherwise. `shared` says that the ranks share a node's memory.
    """
    power_of_two = size & (size - 1) == 0
    match collective:
        case "allreduce":
            if nbytes <= _SHORT:
                return "recursive_doubling"
            if shared and size == 2 and nbytes not in _HELD_BY_THE_LAST_CACHE:
                return "recursive_doubling"
            if size > 4 and nbytes <= _MEDIUM and power_of_two:
                return "recursive_halving"
            return "two_shot" if size <= 4 else "ring"
        case "reduce_scatter":
            if size > 4 and nbytes <= _MEDIUM and power_of_two:
                return "recursive_halving"
            return "two_shot" if size <= 4 else "ring"
        case "allgather":
            if nbytes <= _MEDIUM:
                return "recursive_doubling" if power_of_two else "bruck"
            return "direct" if size <= 4 else "ring"
        case "bcast" | "reduce":
            return "binomial_tree" if nbytes <= _MEDIUM or size <= 2 else "double_tree"
        case "gather" | "scatter":
            return "binomial_tree" if nbytes <= _MEDIUM else "direct"
        case "alltoall":
            return "direct" if size <= 8 else "pairwise"
    return algorithms(collective)[0]
