"""Turns (collective, algorithm, size, rank, root) into a schedule, by one generator an algorithm.

A generator yields one rank's rounds, tuples of steps. It registers under its collective and name
with the number of blocks it cuts the data into. Importing this package registers all of them.
"""

from __future__ import annotations

from mpiopt.algorithms import (  # noqa: F401  (imported to register)
    binomial_tree,
    bruck,
    composed,
    direct,
    dissemination,
    double_tree,
    pairwise,
    recursive,
    ring,
)
from mpiopt.algorithms.registry import algorithms, block_count, schedule

__all__ = ["algorithms", "block_count", "schedule"]
