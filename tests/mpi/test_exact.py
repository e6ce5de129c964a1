"""Every collective by every algorithm, on either transport, does what NumPy says it should.

A *trial* is one call with everything a rank owns: each of its arrays, framed by guard elements,
and what each must be afterwards. Inputs are small integers, so that every order of adding them
gives the same sum and results are compared for equality. Every rank knows every rank's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt import Communicator, rings
from mpiopt.algorithms import algorithms, schedule
from mpiopt.plan import Tuning, block_lengths
from mpiopt.schedule import COLLECTIVES, REDUCING, ROOTED, Schedule, cut

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
EVERY = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
TRANSPORTS = [pytest.param(True, id="rings"), pytest.param(False, id="messages")]
GUARD, SENTINEL = 3, 99
# Elements of 1 to 16 bytes, so that neither blocks nor frames fall on cache lines.
DTYPES = "dbFhDief"


def values(rank: int, n: int, dtype: Any) -> Any:
    return ((np.arange(n) * 7 + rank * 3) % 11 - 5).astype(dtype)


def framed(inside: Any) -> Any:
    frame = np.full(GUARD, SENTINEL, dtype=inside.dtype)
    return np.concatenate([frame, inside, frame])


def inside(whole: Any) -> Any:
    return whole[GUARD : whole.size - GUARD]


class Case(NamedTuple):
    collective: str
    algorithm: str
    n: int  # elements of the vector; of one rank's block where data is only moved
    dtype: str
    root: int
    in_place: bool


class Trial(NamedTuple):
    call: Callable[[], None]
    pairs: list[tuple[Any, Any]]  # an array that the rank owns, and what it must become

    def wrong(self) -> bool:
        self.call()
        return not all(np.array_equal(got, wanted) for got, wanted in self.pairs)


def empty(n: int, dtype: str) -> Any:
    return np.full(n, SENTINEL, dtype=dtype)


def two_buffers(
    method: Callable[..., None], mine: Any, room: int, result: Any, *rest: Any
) -> Trial:
    """A call of (send, receive, ...) that fills its receive buffer and leaves the other alone."""
    send, recv = framed(mine), framed(empty(room, mine.dtype))
    pairs = [(send, send.copy()), (recv, framed(result))]
    return Trial(lambda: method(inside(send), inside(recv), *rest), pairs)


def one_buffer(method: Callable[..., None], before: Any, after: Any, *rest: Any) -> Trial:
    """A call in place."""
    data = framed(before)
    return Trial(lambda: method(MPI.IN_PLACE, inside(data), *rest), [(data, framed(after))])


def allreduce(comm: Any, case: Case) -> Trial:
    total = sum(values(r, case.n, case.dtype) for r in range(SIZE))
    mine, rest = values(RANK, case.n, case.dtype), (MPI.SUM, case.algorithm)
    if case.in_place:
        return one_buffer(comm.Allreduce, mine, total, *rest)
    return two_buffers(comm.Allreduce, mine, case.n, total, *rest)


def reduce(comm: Any, case: Case) -> Trial:
    total = sum(values(r, case.n, case.dtype) for r in range(SIZE))
    mine, rest = values(RANK, case.n, case.dtype), (MPI.SUM, case.root, case.algorithm)
    if RANK != case.root:  # its receive buffer means nothing
        return two_buffers(comm.Reduce, mine, case.n, empty(case.n, case.dtype), *rest)
    if case.in_place:
        return one_buffer(comm.Reduce, mine, total, *rest)
    return two_buffers(comm.Reduce, mine, case.n, total, *rest)


def reduce_scatter(comm: Any, case: Case) -> Trial:
    counts = cut(case.n, SIZE)[::-1]
    total = sum(values(r, case.n, case.dtype) for r in range(SIZE))
    part = total[sum(counts[:RANK]) :][: counts[RANK]]
    mine, rest = values(RANK, case.n, case.dtype), (counts, MPI.SUM, case.algorithm)
    if not case.in_place:
        return two_buffers(comm.Reduce_scatter, mine, counts[RANK], part, *rest)
    data = framed(mine)
    head, tail = data[: GUARD + counts[RANK]], data[data.size - GUARD :]
    guard = empty(GUARD, case.dtype)
    pairs = [(head, np.concatenate([guard, part])), (tail, guard)]
    return Trial(lambda: comm.Reduce_scatter(MPI.IN_PLACE, inside(data), *rest), pairs)


def bcast(comm: Any, case: Case) -> Trial:
    data = framed(values(RANK, case.n, case.dtype))
    wanted = framed(values(case.root, case.n, case.dtype))
    call = lambda: comm.Bcast(inside(data), case.root, case.algorithm)  # noqa: E731
    return Trial(call, [(data, wanted)])


def gathered(case: Case) -> Any:
    blocks = [values(r, case.n, case.dtype) for r in range(SIZE)]
    return np.concatenate(blocks)


def own_block_only(case: Case, whole: Any) -> Any:
    before, block = empty(whole.size, case.dtype), slice(RANK * case.n, (RANK + 1) * case.n)
    before[block] = whole[block]
    return before


def allgather(comm: Any, case: Case) -> Trial:
    everything = gathered(case)
    if case.in_place:
        before = own_block_only(case, everything)
        return one_buffer(comm.Allgather, before, everything, case.algorithm)
    mine = values(RANK, case.n, case.dtype)
    return two_buffers(comm.Allgather, mine, everything.size, everything, case.algorithm)


def gather(comm: Any, case: Case) -> Trial:
    everything, rest = gathered(case), (case.root, case.algorithm)
    mine = values(RANK, case.n, case.dtype)
    if RANK != case.root:
        send = framed(mine)
        call = lambda: comm.Gather(inside(send), None, *rest)  # noqa: E731
        return Trial(call, [(send, send.copy())])
    if case.in_place:
        before = own_block_only(case, everything)
        return one_buffer(comm.Gather, before, everything, *rest)
    return two_buffers(comm.Gather, mine, everything.size, everything, *rest)


def scatter(comm: Any, case: Case) -> Trial:
    everything, rest = gathered(case), (case.root, case.algorithm)
    mine = values(RANK, case.n, case.dtype)
    if RANK != case.root:
        recv = framed(empty(case.n, case.dtype))
        call = lambda: comm.Scatter(None, inside(recv), *rest)  # noqa: E731
        return Trial(call, [(recv, framed(mine))])
    if case.in_place:
        send = framed(everything)
        call = lambda: comm.Scatter(inside(send), MPI.IN_PLACE, *rest)  # noqa: E731
        return Trial(call, [(send, send.copy())])
    return two_buffers(comm.Scatter, everything, case.n, mine, *rest)


def alltoall(comm: Any, case: Case) -> Trial:
    block = lambda s, d: values(s * SIZE + d, case.n, case.dtype)  # noqa: E731
    before = np.concatenate([block(RANK, peer) for peer in range(SIZE)])
    after = np.concatenate([block(peer, RANK) for peer in range(SIZE)])
    if case.in_place:
        return one_buffer(comm.Alltoall, before, after, case.algorithm)
    return two_buffers(comm.Alltoall, before, after.size, after, case.algorithm)


def barrier(comm: Any, case: Case) -> Trial:
    return Trial(lambda: comm.Barrier(case.algorithm), [])


TRIALS: dict[str, Callable[[Any, Case], Trial]] = {
    "allreduce": allreduce,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "bcast": bcast,
    "allgather": allgather,
    "gather": gather,
    "scatter": scatter,
    "alltoall": alltoall,
    "barrier": barrier,
}


def cases(collective: str, algorithm: str, lengths: list[int]) -> Iterator[Case]:
    for number, n in enumerate(lengths):
        dtype = DTYPES[number % len(DTYPES)]
        # Every root where that is cheap or odd, the ends elsewhere.
        roots = range(SIZE) if SIZE <= 4 or n in (SIZE - 1, 17) else (0, SIZE - 1)
        for root in sorted(set(roots)) if collective in ROOTED else (0,):
            for in_place in (False, True):
                yield Case(collective, algorithm, n, dtype, root, in_place)


@cache
def communicator(tuning: Tuning) -> Any:
    return Communicator(MPI.COMM_WORLD, tuning=tuning, timeout=20)


@pytest.fixture(scope="module", autouse=True)
def _free_communicators() -> Iterator[None]:
    yield
    communicator.cache_clear()


def pipelining(shared_memory: bool, lanes: int = 4) -> Tuning:
    """Segments so short that a few hundred elements are several."""
    return Tuning(512, lanes, ring_segment_bytes=512, shared_memory=shared_memory)


def tunings(shared_memory: bool) -> list[tuple[Tuning, list[int]]]:
    """Ways to cut the data, and the lengths that each is tried with."""
    small = sorted({0, 1, SIZE - 1, SIZE, SIZE + 1, 17, 1000})
    pipelined = pipelining(shared_memory, lanes=3)
    split = Tuning(longest_bytes=200, shared_memory=shared_memory)
    both = replace(pipelined, longest_bytes=200)
    return [
        (Tuning(shared_memory=shared_memory), small),
        (pipelined, [SIZE + 1, 1000, 4099]),
        (split, [SIZE + 1, 1000]),
        (both, [1000, 2003]),
    ]


@pytest.mark.parametrize("shared_memory", TRANSPORTS)
@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_every_algorithm_gives_numpy_s_result_and_touches_nothing_else(
    collective: str, algorithm: str, shared_memory: bool, agree: Any
) -> None:
    wrong = [
        (case, tuning)
        for tuning, lengths in tunings(shared_memory)
        for case in cases(collective, algorithm, lengths)
        if TRIALS[collective](communicator(tuning), case).wrong()
    ]
    agree(not wrong, f"{len(wrong)} wrong, such as {wrong[:2]}")


def wrong_when_long(comm: Any, collective: str) -> list[Case]:
    whole = collective in REDUCING or collective == "bcast"
    made = [
        Case(collective, algorithm, n if whole else n // 7, dtype, SIZE - 1, False)
        for algorithm in algorithms(collective)
        for n, dtype in ((140_001, "d"), (1_100_003, "b"))
    ]
    return [case for case in made if TRIALS[collective](comm, case).wrong()]


@pytest.mark.parametrize("shared_memory", TRANSPORTS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_long_messages_are_right(collective: str, shared_memory: bool, agree: Any) -> None:
    """Longer than a ring, and long enough to be read out of the sender's memory."""
    wrong = wrong_when_long(communicator(Tuning(shared_memory=shared_memory)), collective)
    agree(not wrong, f"wrong: {wrong}")


@pytest.mark.parametrize("collective", ["allreduce", "bcast"])
def test_where_memory_cannot_be_read_long_messages_stream(
    collective: str, monkeypatch: pytest.MonkeyPatch, agree: Any
) -> None:
    monkeypatch.setattr(rings, "_can_read_each_other", lambda node: False)
    comm = Communicator(timeout=20)
    wrong = wrong_when_long(comm, collective)
    comm.Free()
    agree(not wrong, f"wrong: {wrong}")


@pytest.mark.parametrize("shared_memory", TRANSPORTS)
def test_a_call_repeated_with_other_buffers_uses_them(shared_memory: bool, agree: Any) -> None:
    """The second and third calls take the short path, with the addresses of the new arrays."""
    comm = communicator(Tuning(shared_memory=shared_memory))
    wrong = []
    for collective, algorithm in EVERY:
        for in_place in (False, True):
            case = Case(collective, algorithm, 31, "d", SIZE - 1, in_place)
            trials = [TRIALS[collective](comm, case) for _ in range(3)]
            wrong += [case for trial in trials if trial.wrong()]
    agree(not wrong, f"wrong: {wrong[:3]}")


# -- the ledger --------------------------------------------------------------------------------


def expected_messages(plan: Schedule, lengths: list[int]) -> int:
    """Messages that are not empty; those of a barrier have no blocks and are sent all the same."""
    return sum(
        step.count == 0 or any(lengths[block] for block in step.indices(plan.blocks))
        for step in plan.sends()
    )


def lengths_of(case: Case, blocks: int) -> list[int]:
    if case.collective in ("allreduce", "reduce", "bcast"):
        return block_lengths(case.n, blocks, np.dtype(case.dtype).itemsize)
    if case.collective == "reduce_scatter":
        return cut(case.n, SIZE)[::-1]
    return [case.n] * blocks


def row_of(comm: Any, case: Case) -> tuple[int, int, int, int]:
    rows = [r for r in comm.ledger.rows() if r["collective"] == case.collective]
    (row,) = rows
    assert row["algorithm"] == case.algorithm
    assert row["payload_bits"] == 8 * row["wire_bytes"]
    return row["calls"], row["rounds"], row["messages"], row["wire_bytes"]


@pytest.mark.parametrize("shared_memory", TRANSPORTS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_ledger_counts_what_the_schedule_says(
    collective: str, shared_memory: bool, agree: Any
) -> None:
    wrong = []
    tried = {
        Tuning(shared_memory=shared_memory): [0, 1, SIZE + 1],
        pipelining(shared_memory): [1000],
    }
    for tuning, lengths in tried.items():
        comm = communicator(tuning)
        for algorithm in algorithms(collective):
            for case in cases(collective, algorithm, lengths):
                trial = TRIALS[collective](comm, case)
                comm.ledger.clear()
                trial.call()
                plan = schedule(collective, algorithm, SIZE, RANK, case.root)
                blocks = lengths_of(case, plan.blocks)
                sent = plan.sent(blocks) * np.dtype(case.dtype).itemsize
                wanted = (1, plan.round_count, expected_messages(plan, blocks), sent)
                if row_of(comm, case) != wanted:
                    wrong.append((case, row_of(comm, case), wanted))
    agree(not wrong, f"{len(wrong)} wrong, such as {wrong[:2]}")


def floor_log2(n: int) -> int:
    return n.bit_length() - 1


def doubling(rank: int) -> int:
    """Messages of recursive doubling: extras hand in theirs, hosts give the result back."""
    steps = floor_log2(SIZE)
    extras = SIZE - 2**steps
    if rank >= 2 * extras:
        return steps
    return 1 if rank % 2 else steps + 1


@pytest.mark.parametrize("shared_memory", TRANSPORTS)
@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "recursive_doubling"])
def test_an_allreduce_sends_what_its_closed_formula_says(
    algorithm: str, shared_memory: bool, agree: Any
) -> None:
    comm = communicator(Tuning(shared_memory=shared_memory))
    n, repeats = 64 * SIZE, 3  # blocks of equal length
    case = Case("allreduce", algorithm, n, "f", 0, True)
    comm.ledger.clear()
    for _ in range(repeats):
        allreduce(comm, case).call()
    if algorithm == "recursive_doubling":
        messages, sent = doubling(RANK), doubling(RANK) * n * 4
    else:
        messages, sent = 2 * (SIZE - 1), 2 * (SIZE - 1) * n * 4 // SIZE
    calls, _, counted, counted_bytes = row_of(comm, case)
    got, wanted = (calls, counted, counted_bytes), (repeats, repeats * messages, repeats * sent)
    agree(got == wanted, f"{got} instead of {wanted}")


def test_the_ledger_keeps_the_counts_of_forgotten_plans(agree: Any) -> None:
    comm = communicator(Tuning())
    comm.ledger.clear()
    repeats = 300  # more lengths than an engine keeps plans
    for n in range(repeats):
        comm.Allreduce(MPI.IN_PLACE, np.zeros(n + 1, dtype=np.float32), algorithm="ring")
    calls, _, _, sent = row_of(comm, Case("allreduce", "ring", 0, "f", 0, True))
    wanted = 0
    for n in range(1, repeats + 1):
        lengths = block_lengths(n, SIZE, 4)
        wanted += 4 * (2 * n - lengths[RANK] - lengths[(RANK + 1) % SIZE])
    agree((calls, sent) == (repeats, wanted), f"{calls}, {sent} instead of {repeats}, {wanted}")
