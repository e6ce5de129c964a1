"""Whatever `auto` chooses exists, and ranks that cannot know the sizes choose without them."""

from __future__ import annotations

import pytest

from mpiopt.algorithms import algorithms
from mpiopt.schedule import COLLECTIVES
from mpiopt.select import choose

BYTES = [0, 1, 8, *(2**k + d for k in range(4, 34) for d in (-1, 0, 1))]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_choice_is_a_registered_algorithm(collective: str) -> None:
    known = algorithms(collective)
    for size in (*range(1, 70), 127, 128, 1000, 1024, 40_000):
        for nbytes in BYTES:
            assert choose(collective, size, nbytes) in known


@pytest.mark.parametrize("collective", ["alltoall", "barrier"])
def test_a_choice_does_not_depend_on_bytes_that_ranks_do_not_share(collective: str) -> None:
    for size in range(1, 40):
        assert len({choose(collective, size, nbytes) for nbytes in BYTES}) == 1
