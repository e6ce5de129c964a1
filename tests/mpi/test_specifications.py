"""Uneven counts, gaps and every way to write a buffer, against mpi4py's own collectives.

Each call is made twice on copies of the same buffers, by mpi4py and by mpiopt; everything that a
rank owns must be equal afterwards. Hypothesis draws the same example on every rank.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from mpiopt import Communicator
from mpiopt.algorithms import algorithms
from mpiopt.plan import Tuning

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
FEW = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
COUNTS = st.lists(st.integers(0, 40) | st.just(0), min_size=SIZE, max_size=SIZE)
Make = Callable[[], tuple[Any, ...]]


@pytest.fixture(scope="module", params=[True, False], ids=["rings", "messages"])
def comm(request: Any) -> Iterator[Any]:
    tuning = Tuning(segment_bytes=128, lanes=2, shared_memory=request.param)
    made = Communicator(tuning=tuning, timeout=30)
    yield made
    made.Free()


def owned(specs: tuple[Any, ...]) -> list[bytes]:
    """The bytes of every buffer in a call's arguments."""
    data = [spec[0] if isinstance(spec, (list, tuple)) else spec for spec in specs]
    plain = [x for x in data if x is not MPI.IN_PLACE and not isinstance(x, (int, MPI.Op))]
    return [np.asarray(x).tobytes() for x in plain if x is not None]


def differs(comm: Any, name: str, make: Make, *rest: Any, **options: Any) -> str:
    """How the two outcomes differ; empty if they do not. `make` gives new equal buffers."""
    theirs, ours = make(), make()
    getattr(MPI.Intracomm, name)(comm, *theirs, *rest)
    getattr(comm, name)(*ours, *rest, **options)
    if owned(theirs) == owned(ours):
        return ""
    return f"{name} {options}: {ours} instead of {theirs}"


def places(counts: list[int], order: list[int], gap: int) -> tuple[list[int], int]:
    """Displacements of blocks that lie in the given order with gaps; and the room they need."""
    starts, at = [0] * len(counts), gap
    for block in order:
        starts[block] = at
        at += counts[block] + gap
    return starts, at


ORDERS = st.permutations(range(SIZE))


def numbers(n: int, salt: int = 0, dtype: Any = np.float64) -> Any:
    return ((np.arange(n) * 5 + 3 * RANK + salt) % 23).astype(dtype)


@FEW
@given(counts=COUNTS, order=ORDERS, gap=st.integers(0, 2), in_place=st.booleans())
def test_allgatherv_is_mpi_s(
    comm: Any, agree: Any, counts: Any, order: Any, gap: int, in_place: bool
) -> None:
    # Displacements are a rank's own affair.
    starts, room = places(counts, order[RANK:] + order[:RANK], gap)

    def make() -> tuple[Any, ...]:
        recv = [numbers(room, 50), (counts, starts), MPI.DOUBLE]
        return MPI.IN_PLACE if in_place else numbers(counts[RANK]), recv

    said = [
        differs(comm, "Allgatherv", make, algorithm=a) for a in ("auto", *algorithms("allgather"))
    ]
    agree(not any(said), "; ".join(filter(None, said)))


@FEW
@given(
    counts=COUNTS,
    order=ORDERS,
    gap=st.integers(0, 2),
    in_place=st.booleans(),
    root=st.integers(0, SIZE - 1),
)
def test_gatherv_and_scatterv_are_mpi_s(
    comm: Any, agree: Any, counts: Any, order: Any, gap: int, in_place: bool, root: int
) -> None:
    starts, room = places(counts, order, gap)
    at_root = root == RANK

    def gather() -> tuple[Any, ...]:
        recv = [numbers(room, 50), (counts, starts), MPI.DOUBLE] if at_root else None
        return MPI.IN_PLACE if in_place and at_root else numbers(counts[RANK]), recv

    def scatter() -> tuple[Any, ...]:
        send = [numbers(room, 50), counts, starts, MPI.DOUBLE] if at_root else None
        return send, MPI.IN_PLACE if in_place and at_root else numbers(counts[RANK])

    said = differs(comm, "Gatherv", gather, root) + differs(comm, "Scatterv", scatter, root)
    agree(not said, said)


@FEW
@given(data=st.data(), gap=st.integers(0, 2), in_place=st.booleans())
def test_alltoallv_is_mpi_s(
    comm: Any, agree: Any, data: st.DataObject, gap: int, in_place: bool
) -> None:
    table = [data.draw(COUNTS) for _ in range(SIZE)]
    if in_place:  # a rank sends to each as much as it receives from it
        table = [[table[max(s, d)][min(s, d)] for d in range(SIZE)] for s in range(SIZE)]
    orders = [data.draw(ORDERS) for _ in range(2)]
    sent, received = table[RANK], [row[RANK] for row in table]
    starts, room = places(sent, orders[0], gap)
    ends, space = places(received, orders[1], gap)

    def make() -> tuple[Any, ...]:
        send = [numbers(room), (sent, starts), MPI.DOUBLE]
        return MPI.IN_PLACE if in_place else send, [numbers(space, 50), received, ends, MPI.DOUBLE]

    said = [differs(comm, "Alltoallv", make, algorithm=a) for a in algorithms("alltoall")]
    agree(not any(said), "; ".join(filter(None, said)))


@FEW
@given(counts=COUNTS, in_place=st.booleans(), op=st.sampled_from([MPI.SUM, MPI.MAX]))
def test_reduce_scatter_is_mpi_s(
    comm: Any, agree: Any, counts: Any, in_place: bool, op: MPI.Op
) -> None:
    total, said = sum(counts), []
    for algorithm in ("auto", *algorithms("reduce_scatter")):
        send, ours = numbers(total), numbers(total if in_place else counts[RANK], 50)
        theirs = ours.copy()
        first = MPI.IN_PLACE if in_place else send
        MPI.Intracomm.Reduce_scatter(comm, first, theirs, counts, op)
        comm.Reduce_scatter(first, ours, counts, op, algorithm)
        result = slice(counts[RANK])
        if not np.array_equal(ours[result], theirs[result]):
            said.append(f"{algorithm}: {ours[result]} instead of {theirs[result]}")
        if not np.array_equal(send, numbers(total)):
            said.append(f"{algorithm}: the send buffer has changed")
    agree(not said, "; ".join(said))


@FEW
@given(n=st.integers(0, 30), in_place=st.booleans())
def test_reduce_scatter_block_and_alltoall_are_mpi_s(
    comm: Any, agree: Any, n: int, in_place: bool
) -> None:
    said = []
    for algorithm in algorithms("reduce_scatter"):
        ours = numbers(n * SIZE if in_place else n, 50)
        theirs, first = ours.copy(), MPI.IN_PLACE if in_place else numbers(n * SIZE)
        MPI.Intracomm.Reduce_scatter_block(comm, first, theirs, MPI.SUM)
        comm.Reduce_scatter_block(first, ours, MPI.SUM, algorithm)
        if not np.array_equal(ours[:n], theirs[:n]):
            said.append(f"reduce_scatter_block {algorithm}: {ours} instead of {theirs}")

    def make() -> tuple[Any, ...]:
        return MPI.IN_PLACE if in_place else numbers(n * SIZE), numbers(n * SIZE, 50)

    said += [differs(comm, "Alltoall", make, algorithm=a) for a in algorithms("alltoall")]
    agree(not any(said), "; ".join(filter(None, said)))


def spellings(n: int) -> list[Callable[[int], Any]]:
    """Ways to write n float64 (or their bytes), from a salt."""
    x = lambda salt: numbers(n, salt)  # noqa: E731
    return [
        x,
        lambda salt: [x(salt), MPI.DOUBLE],
        lambda salt: (x(salt), "d"),
        lambda salt: [x(salt), n, MPI.DOUBLE],
        lambda salt: [x(salt), (n, 0), MPI.DOUBLE],
        lambda salt: [numbers(n + 5, salt), (n, 3), MPI.DOUBLE],
        lambda salt: [numbers(n + 5, salt), n, 2, MPI.DOUBLE],
        lambda salt: [numbers(n + 5, salt), n],
        lambda salt: x(salt).reshape(2, n // 2),
        lambda salt: np.asfortranarray(x(salt).reshape(2, n // 2)),
        lambda salt: array.array("d", x(salt)),
        lambda salt: memoryview(x(salt)),
        lambda salt: [bytearray(x(salt).tobytes()), MPI.DOUBLE],
    ]


def test_every_spelling_of_a_buffer_is_understood_as_mpi4py_does(comm: Any, agree: Any) -> None:
    n = 6
    said = []
    for index, spell in enumerate(spellings(n)):
        twin = spellings(n)[index - 1]
        said += [
            differs(comm, "Allreduce", lambda s=spell, t=twin: (t(0), s(9)), MPI.MAX),
            differs(comm, "Allreduce", lambda s=spell: (MPI.IN_PLACE, s(9)), MPI.SUM),
            differs(comm, "Bcast", lambda s=spell: (s(9),), SIZE - 1),
            differs(comm, "Reduce", lambda s=spell: (s(0), numbers(n)), MPI.SUM, SIZE - 1),
        ]
    agree(not any(said), "; ".join(filter(None, said)))


def test_every_spelling_of_blocks_is_understood_as_mpi4py_does(comm: Any, agree: Any) -> None:
    n = 2  # elements of one block
    whole = lambda salt: numbers(n * SIZE, salt)  # noqa: E731
    counts, said = [n] * SIZE, []
    starts = list(accumulate(counts[:-1], initial=0))
    for spell in (
        whole,
        lambda salt: [whole(salt), MPI.DOUBLE],
        lambda salt: [whole(salt), n, MPI.DOUBLE],
        lambda salt: whole(salt).reshape(SIZE, n),
        lambda salt: np.asfortranarray(whole(salt).reshape(SIZE, n)),
        lambda salt: array.array("d", whole(salt)),
    ):
        said += [
            differs(comm, "Allgather", lambda s=spell: (numbers(n), s(9))),
            differs(comm, "Alltoall", lambda s=spell: (s(0), whole(9))),
            differs(comm, "Gather", lambda s=spell: (numbers(n), s(9) if RANK == 0 else None)),
            differs(comm, "Scatter", lambda s=spell: (s(9) if RANK == 0 else None, numbers(n))),
        ]
    for spell in (
        lambda salt: [whole(salt), counts],
        lambda salt: [whole(salt), counts, MPI.DOUBLE],
        lambda salt: [whole(salt), (counts, starts), MPI.DOUBLE],
        lambda salt: [whole(salt), (counts, None), MPI.DOUBLE],
        lambda salt: [whole(salt), tuple(counts), tuple(starts), "d"],
        lambda salt: [whole(salt), np.array(counts), np.array(starts), MPI.DOUBLE],
        whole,
    ):
        said += [
            differs(comm, "Allgatherv", lambda s=spell: (numbers(n), s(9))),
            differs(comm, "Alltoallv", lambda s=spell: (s(0), s(9))),
            differs(comm, "Gatherv", lambda s=spell: (numbers(n), s(9) if RANK == 0 else None)),
            differs(comm, "Scatterv", lambda s=spell: (s(9) if RANK == 0 else None, numbers(n))),
        ]
    agree(not any(said), "; ".join(filter(None, said)))


@pytest.mark.parametrize("char", "bhilqBHILQfdFD?")
def test_mpi_s_names_of_all_types_move_and_add_right(char: str, comm: Any, agree: Any) -> None:
    datatype = MPI._typedict[char]
    make = lambda: (  # noqa: E731
        [numbers(7, 0, char), datatype],
        [numbers(7, 1, char), 7, datatype],
    )
    said = differs(comm, "Allreduce", make, MPI.LOR if char == "?" else MPI.SUM)
    said += differs(comm, "Bcast", lambda: make()[:1], SIZE - 1)
    agree(not said, said)


def test_a_root_may_be_any_integer(comm: Any, agree: Any) -> None:
    said = []
    for root in (np.int64(SIZE - 1), np.int32(0)):
        for _ in range(2):  # prepared, then hot
            x = np.full(3, float(RANK))
            comm.Bcast(x, root)
            said += [] if np.all(x == int(root)) else [f"{root!r}: {x}"]
    agree(not said, f"{said}")
