"""Mistakes: each gets an error with rank, values and remedy, and hurts nobody else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt import (
    BadBufferError,
    CollectiveError,
    CollectiveTimeout,
    Communicator,
    FreedCommunicatorError,
    MismatchError,
)
from mpiopt.plan import Tuning

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
ODD = SIZE - 1  # the rank that makes the mistake, where one does
TOTAL = SIZE * (SIZE - 1) // 2
TRANSPORTS = [pytest.param(True, id="rings"), pytest.param(False, id="messages")]
together = pytest.mark.skipif(SIZE == 1, reason="one rank cannot disagree")
SHORT_S = 0.7


def outcome(action: Callable[[], Any]) -> BaseException | None:
    try:
        action()
    except Exception as error:
        return error
    return None


def works(comm: Any) -> bool:
    x = np.full(40, float(RANK))
    comm.Allreduce(MPI.IN_PLACE, x)
    y = np.full(7, float(RANK))
    comm.Iallreduce(MPI.IN_PLACE, y).Wait()
    return bool(np.all(x == TOTAL) and np.all(y == TOTAL))


def f4(n: int = 4) -> Any:
    return np.zeros(n, dtype=np.float32)


def f8(n: int = 4) -> Any:
    return np.zeros(n)


def read_only(n: int = 4) -> Any:
    x = f8(n)
    x.flags.writeable = False
    return x


MISTAKES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "two dtypes": (
        lambda c: c.Allreduce(f4(), f8()),
        BadBufferError,
        "allreduce: rank {rank} has 4 float32 to send.*4 x 1 float64; dtypes and lengths must",
    ),
    "two lengths": (
        lambda c: c.Allreduce(f8(4), f8(5)),
        BadBufferError,
        "allreduce: rank {rank} has 4 float64 to send.*room for 5.*must match",
    ),
    "two lengths of a block": (
        lambda c: c.Allgather(f8(3), f8(4 * SIZE)),
        BadBufferError,
        "allgather: rank {rank} has 3 float64.*4 float64 in its block.*must match",
    ),
    "two lengths to oneself": (
        lambda c: c.Alltoallv(
            [f8(2 * SIZE), [2] * SIZE, MPI.DOUBLE], [f8(3 * SIZE), [3] * SIZE, MPI.DOUBLE]
        ),
        BadBufferError,
        "alltoall: rank {rank} sends 2 float64 to itself and receives 3",
    ),
    "counts that are too few": (
        lambda c: c.Reduce_scatter(f8(4), f8(4), [1] * (SIZE + 1)),
        BadBufferError,
        "reduce_scatter: rank {rank}: recvcounts .* must be {size} counts",
    ),
    "a buffer that is no multiple": (
        lambda c: c.Allgather(f8(1), [f8(SIZE), (None, 1), MPI.DOUBLE]),
        BadBufferError,
        "rank {rank}",
    ),
    "not contiguous": (
        lambda c: c.Allreduce(f8(8)[::2], f8()),
        BadBufferError,
        r"rank {rank}: the buffer of shape \(4,\) and strides \(16,\) is not contiguous; pass",
    ),
    "not contiguous to receive": (
        lambda c: c.Bcast(f8(8)[::2]),
        BadBufferError,
        "rank {rank}.*not contiguous",
    ),
    "read-only": (
        lambda c: c.Allreduce(f8(), read_only()),
        BadBufferError,
        "rank {rank}: the receive buffer of shape .* is read-only; pass a writable array",
    ),
    "too short for its count": (
        lambda c: c.Allreduce(MPI.IN_PLACE, [f8(4), 5, MPI.DOUBLE]),
        BadBufferError,
        "rank {rank}: 1 x 5 float64 .* a buffer of 4 elements",
    ),
    "unknown algorithm": (
        lambda c: c.Allreduce(MPI.IN_PLACE, f8(), algorithm="magic"),
        ValueError,
        "allreduce: unknown algorithm 'magic'; one of auto, mpi(?=.* ring)(?=.* two_shot)",
    ),
    "algorithm of another collective": (
        lambda c: c.Bcast(f8(), algorithm="ring"),
        ValueError,
        "bcast: unknown algorithm 'ring'; one of auto, mpi, .*binomial_tree",
    ),
    "tree for a v-form": (
        lambda c: c.Gatherv(
            f8(1), [f8(SIZE), [1] * SIZE] if RANK == 0 else None, 0, algorithm="binomial_tree"
        ),
        ValueError,
        "gather: rank {rank}: the v-form runs with algorithm 'direct' only",
    ),
    "algorithm for what only MPI does": (
        lambda c: c.Allreduce(MPI.IN_PLACE, np.zeros(3, np.longdouble), algorithm="ring"),
        ValueError,
        "Allreduce: rank {rank}: algorithm='ring' cannot run on these arguments.*leave algorithm",
    ),
    "root too high": (
        lambda c: c.Bcast(f8(), SIZE),
        ValueError,
        r"bcast: rank {rank}: root {size} is not a rank .* size {size}; roots are 0\.\.{last}",
    ),
    "root below zero": (
        lambda c: c.Reduce(f8(), f8(), MPI.SUM, -1),
        ValueError,
        "reduce: rank {rank}: root -1 is not a rank",
    ),
    "gather to nobody": (
        lambda c: c.Gather(f8(), None, SIZE + 5),
        ValueError,
        "gather: rank {rank}: root",
    ),
    "scatter from nobody": (
        lambda c: c.Scatter(None, f8(), -2),
        ValueError,
        "scatter: rank {rank}: root",
    ),
}


@pytest.fixture(scope="module")
def comm() -> Iterator[Any]:
    """One for all mistakes: after each of them it must work as before."""
    made = Communicator(timeout=30)
    yield made
    made.Free()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained_and_forgiven(mistake: str, comm: Any, agree: Any) -> None:
    action, kind, pattern = MISTAKES[mistake]
    error = outcome(lambda: action(comm))
    wanted = pattern.format(rank=RANK, size=SIZE, last=SIZE - 1)
    fits = isinstance(error, kind) and re.search(wanted, str(error), re.DOTALL) is not None
    agree(fits, f"{error!r} does not say {wanted!r}")
    agree(works(comm), "the communicator does not work any more")


def test_an_algorithm_with_a_derived_datatype_is_refused(comm: Any, agree: Any) -> None:
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    x = f8(4)
    error = outcome(lambda: comm.Bcast([x, 2, pair], 0, algorithm="binomial_tree"))
    comm.Bcast([x, 2, pair], 0)
    pair.Free()
    agree(isinstance(error, ValueError) and "leave algorithm out" in str(error), f"{error!r}")
    agree(works(comm))


def test_one_rank_s_mistake_can_be_mended_while_the_others_wait(comm: Any, agree: Any) -> None:
    error = None
    if RANK == ODD:
        error = outcome(lambda: comm.Allreduce(f8(3), f8(4)))
    agree((error is not None) == (RANK == ODD))
    agree(works(comm))


def test_bad_options_are_refused(agree: Any) -> None:
    for options in ({"timeout": 0}, {"timeout": -1.0}, {"segment_bytes": 0}):
        made: list[Any] = []
        error = outcome(lambda o=options, m=made: m.append(Communicator(**o)))
        agree(isinstance(error, ValueError) and not made, f"{options}: {error!r}")


def test_a_freed_communicator_says_so(agree: Any) -> None:
    comm = Communicator()
    x = f8()
    comm.Allreduce(MPI.IN_PLACE, x)  # a hot call must be forgotten too
    comm.Free()
    for call in (
        lambda: comm.Allreduce(MPI.IN_PLACE, x),
        lambda: comm.Iallreduce(MPI.IN_PLACE, x),
        comm.Barrier,
        lambda: comm.Bcast(x),
        lambda: comm.Alltoall(MPI.IN_PLACE, f8(SIZE)),
    ):
        error = outcome(call)
        said = str(error)
        fits = isinstance(error, FreedCommunicatorError) and f"rank {RANK}" in said
        agree(fits and "freed" in said and "make a new one" in said, f"{error!r}")


# -- debug=True --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def debug() -> Iterator[Any]:
    comm = Communicator(WORLD, debug=True, timeout=20)
    yield comm
    comm.Free()


def odd(usual: Any, other: Any) -> Any:
    return other if RANK == ODD else usual


DISAGREEMENTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "length": (
        lambda c: c.Allreduce(MPI.IN_PLACE, f8(odd(8, 5))),
        "rank {odd}: Allreduce of 5 float64.*rank 0.*: Allreduce of 8 float64",
    ),
    "op": (
        lambda c: c.Allreduce(MPI.IN_PLACE, f8(), odd(MPI.SUM, MPI.MAX)),
        "rank {odd}: .*op max.*op sum",
    ),
    "dtype": (
        lambda c: c.Allreduce(MPI.IN_PLACE, odd(f8(), f4())),
        "rank {odd}: .*float32.*float64",
    ),
    "root": (
        lambda c: c.Bcast(f8(), odd(0, ODD)),
        "rank {odd}: .*root {odd}.*root 0",
    ),
    "algorithm": (
        lambda c: c.Allreduce(MPI.IN_PLACE, f8(), algorithm=odd("ring", "two_shot")),
        "rank {odd}: .*algorithm two_shot.*algorithm ring",
    ),
    "collective": (
        lambda c: c.Bcast(f8()) if RANK == ODD else c.Allreduce(MPI.IN_PLACE, f8()),
        "rank {odd}: Bcast.*Allreduce",
    ),
    "what only MPI does": (
        lambda c: c.Allreduce(MPI.IN_PLACE, odd(f8(), np.zeros(4, np.longdouble))),
        "rank {odd}: Allreduce by MPI",
    ),
    "a background call": (
        lambda c: c.Iallreduce(MPI.IN_PLACE, f8(odd(8, 5))),
        "rank {odd}: Iallreduce of 5 float64.*Iallreduce of 8",
    ),
    "blocking or not": (
        lambda c: c.Ibarrier() if RANK == ODD else c.Barrier(),
        "rank {odd}: Ibarrier.*Barrier",
    ),
}


@together
@pytest.mark.parametrize("kind", DISAGREEMENTS)
def test_debug_names_the_odd_rank_on_every_rank(kind: str, debug: Any, agree: Any) -> None:
    action, pattern = DISAGREEMENTS[kind]
    error = outcome(lambda: action(debug))
    said = re.search(pattern.format(odd=ODD), str(error), re.DOTALL)
    agree(isinstance(error, MismatchError) and said is not None, f"{error!r}")
    agree(works(debug), "the communicator does not work any more")


@together
def test_debug_tells_the_others_of_a_rank_s_mistake(debug: Any, agree: Any) -> None:
    error = outcome(lambda: debug.Allreduce(f8(odd(4, 3)), f8(4)))
    if RANK == ODD:
        agree(isinstance(error, BadBufferError), f"{error!r}")
    else:
        said = re.search(f"rank {ODD}: refused: Allreduce: allreduce: rank {ODD} has 3", str(error))
        agree(isinstance(error, MismatchError) and said is not None, f"{error!r}")
    agree(works(debug))


def test_debug_lets_right_calls_pass(debug: Any, agree: Any) -> None:
    counts = list(range(1, SIZE + 1))
    recv = np.zeros(sum(counts))
    debug.Gatherv(f8(RANK + 1), [recv, counts] if RANK == 0 else None)
    debug.Allgather([np.zeros(4, np.uint8), MPI.BYTE], [np.zeros(4 * SIZE, np.int8), MPI.CHAR])
    for _ in range(3):
        debug.Barrier()
    agree(works(debug))


@together
def test_debug_does_not_wait_for_ever_either(agree: Any) -> None:
    comm = Communicator(debug=True, timeout=SHORT_S)
    error = None if RANK == ODD else outcome(lambda: comm.Barrier())
    fits = isinstance(error, CollectiveTimeout) and f"rank {RANK} waited" in str(error)
    agree(fits or RANK == ODD, f"{error!r}")


# -- ranks that never come ---------------------------------------------------------------------


def timed(action: Callable[[], Any]) -> tuple[BaseException | None, float]:
    started = time.monotonic()
    return outcome(action), time.monotonic() - started


@together
@pytest.mark.parametrize("n", [5, 300_000], ids=["short", "long"])
@pytest.mark.parametrize("shared_memory", TRANSPORTS)
def test_a_rank_that_never_comes_ends_in_a_timeout(shared_memory: bool, n: int, agree: Any) -> None:
    comm = Communicator(tuning=Tuning(shared_memory=shared_memory), timeout=SHORT_S)
    error, seconds = None, SHORT_S
    if RANK != ODD:
        error, seconds = timed(lambda: comm.Allreduce(MPI.IN_PLACE, f8(n), algorithm="ring"))
    WORLD.Barrier()
    said = f"allreduce \\(ring\\): rank {RANK} waited {SHORT_S:g} s for rank \\d.*round \\d.*"
    fits = isinstance(error, CollectiveTimeout) and re.search(said, str(error)) is not None
    agree(fits or RANK == ODD, f"{error!r}")
    agree(SHORT_S <= seconds < 10 * SHORT_S, f"after {seconds} s")
    # What was left in the middle refuses to go on, and says why.
    after = None if RANK == ODD else outcome(comm.Barrier)
    fits = isinstance(after, FreedCommunicatorError) and "left in the middle of" in str(after)
    agree(fits or RANK == ODD, f"{after!r}")
    other = Communicator(timeout=30)
    agree(works(other), "a new communicator does not work")
    other.Free()


@together
def test_a_background_call_times_out_too(agree: Any) -> None:
    comm = Communicator(timeout=SHORT_S)
    error = None
    if RANK != ODD:
        request = comm.Iallreduce(MPI.IN_PLACE, f8(5), algorithm="ring")
        error, _ = timed(request.Wait)
    WORLD.Barrier()
    fits = isinstance(error, CollectiveTimeout) and f"rank {RANK} waited" in str(error)
    agree(fits or RANK == ODD, f"{error!r}")
    x = np.full(3, float(RANK))
    comm.Allreduce(MPI.IN_PLACE, x)  # the blocking calls have a communicator of their own
    agree(bool(np.all(x == TOTAL)))


@together
@pytest.mark.parametrize("shared_memory", TRANSPORTS)
def test_a_slow_rank_within_the_timeout_is_waited_for(shared_memory: bool, agree: Any) -> None:
    comm = Communicator(tuning=Tuning(shared_memory=shared_memory), timeout=30)
    for _ in range(2):
        if RANK == ODD:
            time.sleep(0.3)
        agree(works(comm))
    comm.Free()


@together
@pytest.mark.parametrize("algorithm", ["recursive_doubling", "ring"])
@pytest.mark.parametrize("shared_memory", TRANSPORTS)
def test_unlike_lengths_are_an_error_on_every_rank(
    shared_memory: bool, algorithm: str, agree: Any
) -> None:
    """Without debug=True: whatever a rank held at the end would be wrong, so none may return.

    Short messages only: of a long one, Open MPI 5.0 writes all into a buffer that is too short
    for it before it reports the truncation, whoever asked for it.
    """
    comm = Communicator(tuning=Tuning(shared_memory=shared_memory), timeout=SHORT_S)
    x = np.ones(odd(300, 150))
    error = outcome(lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm))
    WORLD.Barrier()
    agree(isinstance(error, CollectiveError), f"{error!r}, and {x[[0, -1]]}")
