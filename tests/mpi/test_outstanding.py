"""Calls under way at the same time: on several communicators, in the background, on threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt import Communicator
from mpiopt.plan import Tuning

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
TOTAL = SIZE * (SIZE - 1) // 2
TRANSPORTS = [pytest.param(True, id="rings"), pytest.param(False, id="messages")]

threaded = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI without threads: nothing in background"
)


@pytest.fixture(params=TRANSPORTS)
def pair(request: Any) -> Any:
    """Two communicators over the same ranks."""
    tuning = Tuning(segment_bytes=4096, shared_memory=request.param)
    made = [Communicator(tuning=tuning, timeout=60) for _ in range(2)]
    yield made
    for comm in made:
        comm.Free()


def starts(comm: Any, salt: int) -> list[tuple[MPI.Request, Any, Any]]:
    """One of each non-blocking collective: its request, its result, and what that must be."""
    mine, n = float(RANK + salt), 50 + salt
    everybody = np.arange(SIZE) + float(salt)
    under_way = []

    def add(start: Any, result: Any, wanted: Any, *arguments: Any) -> None:
        under_way.append((start(*arguments), result, wanted))

    out = np.zeros(n)
    add(comm.Iallreduce, out, np.full(n, everybody.sum()), np.full(n, mine), out)
    out = np.zeros(n)
    at_last = np.full(n, everybody.sum()) if RANK == SIZE - 1 else np.zeros(n)
    add(comm.Ireduce, out, at_last, np.full(n, mine), out, MPI.SUM, SIZE - 1)
    out = np.full(n, mine)
    add(comm.Ibcast, out, np.full(n, everybody[0]), out, 0)
    out = np.zeros((SIZE, n))
    add(comm.Iallgather, out, np.repeat(everybody, n).reshape(SIZE, n), np.full(n, mine), out)
    out = np.zeros((SIZE, n))
    wanted = np.repeat(everybody, n).reshape(SIZE, n) if RANK == 0 else out.copy()
    add(comm.Igather, out, wanted, np.full(n, mine), out if RANK == 0 else None, 0)
    out = np.zeros(n)
    table = np.repeat(everybody, n) if RANK == 0 else None
    add(comm.Iscatter, out, np.full(n, mine), table, out, 0)
    out = np.zeros((SIZE, n))
    add(
        comm.Ialltoall, out, np.repeat(everybody, n).reshape(SIZE, n), np.full((SIZE, n), mine), out
    )
    out = np.zeros(n)
    add(comm.Ireduce_scatter_block, out, np.full(n, everybody.sum()), np.full(SIZE * n, mine), out)
    out, counts = np.zeros(RANK), list(range(SIZE))
    add(
        comm.Ireduce_scatter,
        out,
        np.full(RANK, everybody.sum()),
        np.full(sum(counts), mine),
        out,
        counts,
    )
    out = np.zeros(sum(counts))
    add(comm.Iallgatherv, out, np.repeat(everybody, counts), np.full(RANK, mine), [out, counts])
    add(comm.Ibarrier, np.zeros(0), np.zeros(0))
    return under_way


def wrong(under_way: list[tuple[MPI.Request, Any, Any]]) -> list[int]:
    return [i for i, (_, got, wanted) in enumerate(under_way) if not np.array_equal(got, wanted)]


def test_calls_on_two_communicators_do_not_mix(pair: Any, agree: Any) -> None:
    """Ranks start them in different orders, and wait in reverse."""
    one, two = pair if RANK % 2 else pair[::-1]
    salts = {id(pair[0]): 1, id(pair[1]): 7}
    under_way = []
    for _ in range(3):
        under_way += starts(one, salts[id(one)])
        under_way += starts(two, salts[id(two)])
    for request, _, _ in reversed(under_way):
        request.Wait()
    agree(not wrong(under_way), f"wrong: {wrong(under_way)}")


def test_blocking_calls_may_overtake_what_is_under_way(pair: Any, agree: Any) -> None:
    under_way, said = [], []
    for salt in range(4):
        under_way += starts(pair[0], salt)
        x = np.full(20_000, float(RANK))
        pair[salt % 2].Allreduce(MPI.IN_PLACE, x)
        pair[0].Barrier()
        said += [] if np.all(x == TOTAL) else [f"blocking {salt}"]
    MPI.Request.Waitall([request for request, _, _ in under_way])
    agree(not said and not wrong(under_way), f"{said}, {wrong(under_way)}")


def test_the_user_s_messages_with_any_tag_are_left_alone(pair: Any, agree: Any) -> None:
    comm, right, left = pair[0], (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = [np.zeros(5) for _ in range(80)]
    receives = [comm.Irecv(x, left, tag) for tag, x in enumerate(got)]
    under_way = starts(comm, 2)
    x = np.full(3000, float(RANK))
    comm.Allreduce(MPI.IN_PLACE, x)
    sends = [comm.Isend(np.full(5, RANK + 100.0 * tag), right, tag) for tag in range(len(got))]
    mixed = [*sends, *(request for request, _, _ in under_way), *receives]
    MPI.Request.Waitall(mixed[::2] + mixed[1::2])
    messages = all(np.all(x == left + 100.0 * tag) for tag, x in enumerate(got))
    agree(messages and not wrong(under_way) and bool(np.all(x == TOTAL)), f"{wrong(under_way)}")


def test_every_way_of_completing_a_request_works(pair: Any, agree: Any) -> None:
    comm, right = pair[0], []
    for complete in ("Wait", "wait", "Test", "test", "Waitany", "Testall", "Waitsome"):
        x = np.full(9, float(RANK))
        request = comm.Iallreduce(MPI.IN_PLACE, x)
        if complete in ("Test", "test"):
            done = getattr(request, complete)
            while not (done()[0] if complete == "test" else done()):
                time.sleep(0)
        elif complete == "Testall":
            while not MPI.Request.Testall([request]):
                time.sleep(0)
        elif complete in ("Waitany", "Waitsome"):
            getattr(MPI.Request, complete)([request])
        else:
            getattr(request, complete)()
        right.append(bool(np.all(x == TOTAL)))
    agree(all(right), f"{right}")


def test_wait_again_returns_at_once_as_for_any_request(pair: Any, agree: Any) -> None:
    x = np.full(9, float(RANK))
    request = pair[0].Iallreduce(MPI.IN_PLACE, x)
    request.Wait()
    request.Wait()
    agree(request.Test() and bool(np.all(x == TOTAL)))


def test_a_dropped_request_still_finishes(pair: Any, agree: Any) -> None:
    x = np.full(4000, float(RANK))
    pair[0].Iallreduce(MPI.IN_PLACE, x)
    pair[0].Ibarrier().Wait()  # calls of one communicator run in order
    agree(bool(np.all(x == TOTAL)))


@threaded
@pytest.mark.parametrize("work", ["numpy", "python"])
def test_the_background_thread_gets_on_while_the_user_computes(work: str, agree: Any) -> None:
    comm = Communicator(timeout=60)
    x = np.full(1 << 18, float(RANK))
    grid = np.random.default_rng(0).normal(size=(120, 120))
    request = comm.Iallreduce(MPI.IN_PLACE, x)
    before = request._outcome.ended.is_set()
    deadline, steps = time.monotonic() + 60, 0
    while not request._outcome.ended.is_set() and time.monotonic() < deadline:
        # No MPI call, nor any other that waits.
        grid = np.tanh(grid @ grid) if work == "numpy" else grid
        steps += sum(i * i for i in range(2000)) > 0
    ended = request._outcome.ended.is_set()
    done = request.Test()
    comm.Free()
    agree(ended and done and bool(np.all(x == TOTAL)), f"{before=} {ended=} {done=} {steps=}")


@threaded
def test_two_threads_may_use_two_communicators(pair: Any, agree: Any) -> None:
    said: list[Any] = []

    def work(comm: Any, salt: int) -> None:
        try:
            for n in (1, 17, 4000, 1, 17, 4000) * 5:
                x, y = np.full(n, float(RANK + salt)), np.zeros(n)
                comm.Allreduce(x, y)
                comm.Iallreduce(MPI.IN_PLACE, x).Wait()
                comm.Bcast(y, SIZE - 1)
                comm.Barrier()
                wanted = TOTAL + SIZE * salt
                if not (np.all(x == wanted) and np.all(y == wanted)):
                    said.append((salt, n, x[0], y[0]))
        except Exception as error:
            said.append(repr(error))

    threads = [threading.Thread(target=work, args=(c, 10 * i)) for i, c in enumerate(pair)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    agree(not said, f"{said[:4]}")


@threaded
def test_a_short_call_does_not_shut_out_a_thread_that_waits_in_mpi(pair: Any, agree: Any) -> None:
    """MPI asks a request's Python function while it holds its own lock: a call that held the
    interpreter's and wanted MPI's would wait for ever."""
    x, y, rounds = np.ones(1), np.empty(1), 60

    def wait() -> None:
        for _ in range(rounds):
            MPI.Request.Waitall([pair[1].Iallreduce(MPI.IN_PLACE, np.ones(1))])

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(rounds):
        pair[0].Allreduce(x, y)
    waiting.join()
    agree(y[0] == SIZE)


def test_freeing_lets_what_is_under_way_finish(agree: Any) -> None:
    comm = Communicator(timeout=60)
    x = np.full(5000, float(RANK))
    request = comm.Iallreduce(MPI.IN_PLACE, x)
    comm.Free()
    request.Wait()
    agree(bool(np.all(x == TOTAL)))
