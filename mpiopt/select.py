"""Turns (collective, ranks, bytes) into the algorithm that `auto` runs.

Until a tuning table is there, the rules are the usual ones: few rounds while latency dominates, few
bytes when bandwidth does. All ranks see the same arguments, so all choose alike; where a rank does
not know the bytes (the v-forms), the choice must not depend on them.
"""

from __future__ import annotations

from mpiopt.algorithms import algorithms

AUTO = "auto"
# Up to these sizes one exchange of everything beats two of parts; measured on shared memory with
# two ranks, where it matters most.
_SHORT = 16 << 10
_MEDIUM = 256 << 10


def choose(collective: str, size: int, nbytes: int) -> str:
    """The name of the algorithm for a buffer of nbytes on `size` ranks.

    The buffer is the whole vector of a reduction or broadcast, and the gathered, scattered or
    exchanged data of one rank otherwise.
    """
    power_of_two = size & (size - 1) == 0
    match collective:
        case "allreduce":
            if nbytes <= _SHORT:
                return "recursive_doubling"
            if size > 2 and nbytes <= _MEDIUM and power_of_two:
                return "recursive_halving"
            return "two_shot" if size <= 4 else "ring"
        case "reduce_scatter":
            if nbytes <= _MEDIUM and power_of_two:
                return "recursive_halving"
            return "two_shot" if size <= 4 else "ring"
        case "allgather":
            if nbytes <= _MEDIUM:
                return "recursive_doubling" if power_of_two else "bruck"
            return "direct" if size <= 4 else "ring"
        case "bcast":
            return "binomial_tree" if nbytes <= _MEDIUM or size <= 2 else "double_tree"
        case "reduce":
            return "binomial_tree" if nbytes <= _MEDIUM or size <= 2 else "double_tree"
        case "gather" | "scatter":
            return "binomial_tree" if nbytes <= _MEDIUM else "direct"
        case "alltoall":
            return "direct" if size <= 8 else "pairwise"
    return algorithms(collective)[0]
