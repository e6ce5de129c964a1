"""Keeps the generators by collective and name, and runs them into cached schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache

from mpiopt.schedule import COLLECTIVES, ROOTED, Round, Schedule

Generator = Callable[..., Iterator[Round]]
_GENERATORS: dict[str, dict[str, tuple[Generator, Callable[[int], int]]]] = {
    collective: {} for collective in COLLECTIVES
}


def one(size: int) -> int:
    """Block count of an algorithm that never cuts the data."""
    return 1


def two(size: int) -> int:
    """Block count of an algorithm that sends one half each way."""
    return 2


def per_rank(size: int) -> int:
    """Block count of an algorithm that gives every rank a block."""
    return size


def per_pair(size: int) -> int:
    """Block count of an exchange between all pairs; block s * size + d goes from s to d."""
    return size * size


def no_data(size: int) -> int:
    """Block count of a barrier."""
    return 0


def generator(
    collective: str, algorithm: str, blocks: Callable[[int], int]
) -> Callable[[Generator], Generator]:
    """Register a generator (rank, size[, root]) -> rounds under its collective and name."""

    def register(function: Generator) -> Generator:
        _GENERATORS[collective][algorithm] = (function, blocks)
        return function

    return register


def algorithms(collective: str) -> tuple[str, ...]:
    """Names of the algorithms for a collective."""
    if collective not in _GENERATORS:
        raise ValueError(f"unknown collective {collective!r}; one of {', '.join(COLLECTIVES)}")
    return tuple(_GENERATORS[collective])


def _find(collective: str, algorithm: str) -> tuple[Generator, Callable[[int], int]]:
    if algorithm not in algorithms(collective):
        raise ValueError(
            f"{collective}: unknown algorithm {algorithm!r}; one of "
            f"{', '.join(algorithms(collective))}"
        )
    return _GENERATORS[collective][algorithm]


@cache
def block_count(collective: str, algorithm: str, size: int) -> int:
    """Into how many blocks an algorithm cuts the data on `size` ranks."""
    return _find(collective, algorithm)[1](size)


@lru_cache(maxsize=1024)
def schedule(collective: str, algorithm: str, size: int, rank: int, root: int = 0) -> Schedule:
    """One rank's schedule; cached, since it does not depend on the buffer."""
    generate, blocks = _find(collective, algorithm)
    if not 0 <= rank < size or not 0 <= root < size:
        raise ValueError(f"{collective}: rank {rank} and root {root} must be in 0..{size - 1}")
    extra = (root,) if collective in ROOTED else ()
    rounds = tuple(steps for steps in generate(rank, size, *extra) if steps)
    return Schedule(collective, algorithm, size, rank, root, blocks(size), rounds)
