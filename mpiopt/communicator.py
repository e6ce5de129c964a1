"""Turns an MPI communicator into one whose buffer collectives run mpiopt's schedules.

Every method is: recognise a call seen before and run its plan; else prepare the call, find or make
the plan, run it. What mpiopt does not handle goes to mpi4py unchanged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from mpi4py import MPI

from mpiopt import calls, executor
from mpiopt.agreement import Agreement
from mpiopt.buffers import is_in_place
from mpiopt.calls import Prepared
from mpiopt.engine import Engine
from mpiopt.ledger import Ledger
from mpiopt.plan import Plan, Tuning
from mpiopt.progress import Progress
from mpiopt.rings import Rings, wanted
from mpiopt.select import AUTO

Prepare = Callable[..., Prepared | None]
_MPI = MPI.Intracomm  # what calls fall back on
# Looks before the executor gives the interpreter a chance to handle signals and deadlines.
_PATIENCE = 20_000
_SPINS = 2_000
# In the background a thread looks a few times and then sleeps, to leave the processor to the user.
_BACK_SPINS, _BACK_NAP_US, _BACK_PATIENCE = 200, 20, 2_000
# A hot call's first word is one of these, plus _ROOT times its root.
_ROOT = 16
(
    _ALLREDUCE,
    _REDUCE,
    _REDUCE_SCATTER_BLOCK,
    _BCAST,
    _ALLGATHER,
    _GATHER,
    _SCATTER,
    _ALLTOALL,
    _BARRIER,
) = range(9)


class _Default(type(MPI.Intracomm)):  # type: ignore[misc]
    """Lets `Communicator()` mean the world, while mpi4py's own bare `__new__` stays null."""

    def __call__(cls, comm: MPI.Intracomm | None = None, **options: Any) -> Any:
        return super().__call__(MPI.COMM_WORLD if comm is None else comm, **options)


class Communicator(MPI.Intracomm, metaclass=_Default):
    """An intra-communicator with mpi4py's interface and mpiopt's collectives.

    Args:
        comm: what to duplicate; MPI.COMM_WORLD if left out. Making one is collective.
        timeout: seconds after which a waiting call raises CollectiveTimeout; None waits for ever.
        debug: let all ranks compare what they call before each call, so that a mismatch is an
            error that names the odd rank instead of a hang or a wrong result.
        segment_bytes: how long blocks are cut for pipelining; the same on every rank.

    Example:
        >>> comm = Communicator(MPI.COMM_WORLD)
        >>> x = np.ones(1000, dtype=np.float32)
        >>> comm.Allreduce(MPI.IN_PLACE, x)
    """

    def __new__(cls, comm: MPI.Intracomm | None = None, **options: Any) -> Communicator:
        return super().__new__(cls, comm if comm is None else _intra(comm).Dup())

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        timeout: float | None = None,
        debug: bool = False,
        segment_bytes: int | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout must be positive seconds or None, not {timeout}")
        tuning = tuning or Tuning()
        if segment_bytes is not None:
            tuning = replace(
                tuning,
                segment_bytes=segment_bytes,
                ring_segment_bytes=segment_bytes,
                long_segment_bytes=segment_bytes,
            )
        if min(tuning.segment_bytes, tuning.lanes, tuning.longest_bytes) < 1:
            raise ValueError(f"segments, lanes and messages must be at least 1, not {tuning}")
        self._start(timeout, debug, tuning)

    def _start(self, timeout: float | None, debug: bool, tuning: Tuning) -> None:
        """Make the private communicators; collective."""
        self._options = (timeout, debug, tuning)
        node = MPI.Intracomm(self._plain().Split_type(MPI.COMM_TYPE_SHARED))
        crowded = node.size > (os.cpu_count() or 1)
        # One rank a node compiles, the others load what it left in the cache.
        if node.rank == 0:
            executor.load()
        _wait_idly(node.Ibarrier())
        executor.load()
        rings = Rings(node) if tuning.shared_memory and wanted(node, self) else None
        node.Free()
        spins = 0 if crowded else _SPINS
        self._front = Engine(self._private(), tuning, spins, 0, _PATIENCE, rings)
        back = Engine(
            self._private(), tuning, min(spins, _BACK_SPINS), _BACK_NAP_US, _BACK_PATIENCE
        )
        self._progress = Progress(back)
        self._agreement = Agreement(self._private()) if debug else None
        self._replay = executor.replay.entry_point
        self._threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._hot = self._front.hot_address
        self.timeout = timeout

    def _plain(self) -> MPI.Intracomm:
        return MPI.Intracomm(self)

    def _private(self) -> MPI.Intracomm:
        private = self._plain().Dup()
        private.Set_errhandler(MPI.ERRORS_RETURN)
        return private

    @property
    def timeout(self) -> float | None:
        """Seconds that a call may wait; None for ever."""
        return self._front.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._front.timeout = self._progress.engine.timeout = seconds
        if self._agreement is not None:
            self._agreement.timeout = seconds

    @property
    def ledger(self) -> Ledger:
        """What this rank's blocking calls have sent; `background_ledger` has the I-forms."""
        return self._front.ledger

    @property
    def background_ledger(self) -> Ledger:
        """What this rank's non-blocking calls have sent."""
        return self._progress.engine.ledger

    def Free(self) -> None:
        """Free the communicator and everything that was made for it; collective."""
        self._progress.stop()
        self._front.free()
        self._progress.engine.free()
        if self._agreement is not None:
            self._agreement.free()
        super().Free()

    # -- how calls run ------------------------------------------------------------------------

    def _run(
        self,
        hot: tuple[int, Any, Any, Any],
        prepare: Prepare,
        fallback: Callable[..., Any],
        arguments: tuple[Any, ...],
        algorithm: str,
    ) -> None:
        """Run a call again, or for the first time. `hot` is (word, extra, send, recv)."""
        word, extra, send, recv = hot
        code = self._replay(self._hot, word, id(extra), id(algorithm), id(send), id(recv))
        if code == executor.MISS:
            plan = self._run_new(prepare, fallback, arguments, algorithm)
            if plan is not None and self._agreement is None:
                self._front.remember(word, extra, algorithm, send, recv, plan)
        elif code != executor.DONE:
            self._front.resume(code, arguments)

    def _run_new(
        self,
        prepare: Prepare,
        fallback: Callable[..., Any],
        arguments: tuple[Any, ...],
        algorithm: str,
    ) -> Plan | None:
        prepared = self._prepare(prepare, fallback, arguments, algorithm, self._front)
        if prepared is not None:
            return self._front.execute(*prepared)
        fallback(self, *arguments)
        return None

    def _post(
        self,
        prepare: Prepare,
        fallback: Callable[..., Any],
        arguments: tuple[Any, ...],
        algorithm: str,
    ) -> MPI.Request:
        """Hand a call to the background thread."""
        prepared = self._prepare(prepare, fallback, arguments, algorithm, self._progress.engine)
        if prepared is not None and self._threads:
            return self._progress.submit(prepared)
        request: MPI.Request = fallback(self, *arguments)
        return request

    def _prepare(
        self,
        prepare: Prepare,
        fallback: Callable[..., Any],
        arguments: tuple[Any, ...],
        algorithm: str,
        engine: Engine,
    ) -> Prepared | None:
        """The prepared call, agreed with all ranks if this is a debug communicator."""
        engine.check_usable(fallback.__name__)
        try:
            prepared = None
            if algorithm != "mpi":
                prepared = prepare(engine.place, *arguments, algorithm)
            if prepared is None and algorithm not in (AUTO, "mpi"):
                raise ValueError(
                    f"{fallback.__name__}: rank {engine.rank}: algorithm={algorithm!r} cannot run "
                    "on these arguments, only MPI's own can; leave algorithm out"
                )
        except Exception as error:
            if self._agreement is not None:
                self._agreement.refuse(f"{fallback.__name__}: {error}")
            raise
        if self._agreement is not None:
            self._agreement.reach(fallback.__name__, prepared)
        return prepared

    # -- blocking -----------------------------------------------------------------------------

    def Barrier(self, algorithm: str = AUTO) -> None:
        hot = (_BARRIER, None, None, None)
        self._run(hot, calls.barrier, _MPI.Barrier, (), algorithm)

    def Bcast(self, buf: Any, root: int = 0, algorithm: str = AUTO) -> None:
        hot = (_BCAST + _ROOT * root, None, None, buf)
        self._run(hot, calls.bcast, _MPI.Bcast, (buf, root), algorithm)

    def Allreduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, algorithm: str = AUTO
    ) -> None:
        # As in _run, but written out: it saves a tenth of a microsecond where that is a tenth.
        code = self._replay(self._hot, _ALLREDUCE, id(op), id(algorithm), id(sendbuf), id(recvbuf))
        if code:
            arguments = (sendbuf, recvbuf, op)
            if code != executor.MISS:
                self._front.resume(code, arguments)
                return
            plan = self._run_new(calls.allreduce, _MPI.Allreduce, arguments, algorithm)
            if plan is not None and self._agreement is None:
                self._front.remember(_ALLREDUCE, op, algorithm, sendbuf, recvbuf, plan)

    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        algorithm: str = AUTO,
    ) -> None:
        hot = (_REDUCE + _ROOT * root, op, sendbuf, recvbuf)
        self._run(hot, calls.reduce, _MPI.Reduce, (sendbuf, recvbuf, op, root), algorithm)

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, algorithm: str = AUTO
    ) -> None:
        hot = (_REDUCE_SCATTER_BLOCK, op, sendbuf, recvbuf)
        arguments = (sendbuf, recvbuf, op)
        fallback = _MPI.Reduce_scatter_block
        if is_in_place(sendbuf):  # not hot: what is sent must be copied before every call
            self._run_new(calls.reduce_scatter_block, fallback, arguments, algorithm)
            return
        self._run(hot, calls.reduce_scatter_block, fallback, arguments, algorithm)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Any = None,
        op: MPI.Op = MPI.SUM,
        algorithm: str = AUTO,
    ) -> None:
        arguments = (sendbuf, recvbuf, recvcounts, op)
        self._run_new(calls.reduce_scatter, _MPI.Reduce_scatter, arguments, algorithm)

    def Allgather(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> None:
        hot = (_ALLGATHER, None, sendbuf, recvbuf)
        self._run(hot, calls.allgather, _MPI.Allgather, (sendbuf, recvbuf), algorithm)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> None:
        self._run_new(calls.allgatherv, _MPI.Allgatherv, (sendbuf, recvbuf), algorithm)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO) -> None:
        hot = (_GATHER + _ROOT * root, None, sendbuf, recvbuf)
        self._run(hot, calls.gather, _MPI.Gather, (sendbuf, recvbuf, root), algorithm)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO) -> None:
        self._run_new(calls.gatherv, _MPI.Gatherv, (sendbuf, recvbuf, root), algorithm)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO) -> None:
        hot = (_SCATTER + _ROOT * root, None, sendbuf, recvbuf)
        self._run(hot, calls.scatter, _MPI.Scatter, (sendbuf, recvbuf, root), algorithm)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO) -> None:
        self._run_new(calls.scatterv, _MPI.Scatterv, (sendbuf, recvbuf, root), algorithm)

    def Alltoall(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> None:
        arguments = (sendbuf, recvbuf)
        if is_in_place(sendbuf):  # not hot: what is sent must be copied before every call
            self._run_new(calls.alltoall, _MPI.Alltoall, arguments, algorithm)
            return
        hot = (_ALLTOALL, None, sendbuf, recvbuf)
        self._run(hot, calls.alltoall, _MPI.Alltoall, arguments, algorithm)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> None:
        self._run_new(calls.alltoallv, _MPI.Alltoallv, (sendbuf, recvbuf), algorithm)

    # -- non-blocking -------------------------------------------------------------------------

    def Ibarrier(self, algorithm: str = AUTO) -> MPI.Request:
        return self._post(calls.barrier, _MPI.Ibarrier, (), algorithm)

    def Ibcast(self, buf: Any, root: int = 0, algorithm: str = AUTO) -> MPI.Request:
        return self._post(calls.bcast, _MPI.Ibcast, (buf, root), algorithm)

    def Iallreduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, algorithm: str = AUTO
    ) -> MPI.Request:
        return self._post(calls.allreduce, _MPI.Iallreduce, (sendbuf, recvbuf, op), algorithm)

    def Ireduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        algorithm: str = AUTO,
    ) -> MPI.Request:
        return self._post(calls.reduce, _MPI.Ireduce, (sendbuf, recvbuf, op, root), algorithm)

    def Ireduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, algorithm: str = AUTO
    ) -> MPI.Request:
        fallback, arguments = _MPI.Ireduce_scatter_block, (sendbuf, recvbuf, op)
        return self._post(calls.reduce_scatter_block, fallback, arguments, algorithm)

    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Any = None,
        op: MPI.Op = MPI.SUM,
        algorithm: str = AUTO,
    ) -> MPI.Request:
        arguments = (sendbuf, recvbuf, recvcounts, op)
        return self._post(calls.reduce_scatter, _MPI.Ireduce_scatter, arguments, algorithm)

    def Iallgather(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> MPI.Request:
        return self._post(calls.allgather, _MPI.Iallgather, (sendbuf, recvbuf), algorithm)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> MPI.Request:
        return self._post(calls.allgatherv, _MPI.Iallgatherv, (sendbuf, recvbuf), algorithm)

    def Igather(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO
    ) -> MPI.Request:
        return self._post(calls.gather, _MPI.Igather, (sendbuf, recvbuf, root), algorithm)

    def Igatherv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO
    ) -> MPI.Request:
        return self._post(calls.gatherv, _MPI.Igatherv, (sendbuf, recvbuf, root), algorithm)

    def Iscatter(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO
    ) -> MPI.Request:
        return self._post(calls.scatter, _MPI.Iscatter, (sendbuf, recvbuf, root), algorithm)

    def Iscatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO
    ) -> MPI.Request:
        return self._post(calls.scatterv, _MPI.Iscatterv, (sendbuf, recvbuf, root), algorithm)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> MPI.Request:
        return self._post(calls.alltoall, _MPI.Ialltoall, (sendbuf, recvbuf), algorithm)

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO) -> MPI.Request:
        return self._post(calls.alltoallv, _MPI.Ialltoallv, (sendbuf, recvbuf), algorithm)


def _intra(comm: MPI.Comm) -> MPI.Intracomm:
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise TypeError(
            f"Communicator needs an intra-communicator, not {comm!r}; for an inter-communicator "
            "call mpi4py's methods on it directly"
        )
    return comm


def _wait_idly(request: MPI.Request) -> None:
    """Wait without taking the processor from the rank that is waited for."""
    while not request.Test():
        time.sleep(1e-3)


def _wrapping(name: str) -> Callable[..., Any]:
    """mpi4py's method, whose new communicator is one of ours, with this one's options."""
    plain = getattr(MPI.Intracomm, name)

    @wraps(plain)
    def make(self: Communicator, *args: Any, **kwargs: Any) -> Any:
        made = plain(self._plain(), *args, **kwargs)
        if made == MPI.COMM_NULL:
            return made
        # Without __init__, as mpi4py does it: a subclass keeps its class, whatever it is made with.
        ours = type(self).__new__(type(self), made)
        ours._start(*self._options)
        made.Free()
        return ours

    return make


def _leaving(name: str) -> Callable[..., Any]:
    """mpi4py's method, plain: what it makes cannot be made ready before its request is done."""
    plain = getattr(MPI.Intracomm, name)

    @wraps(plain)
    def make(self: Communicator, *args: Any, **kwargs: Any) -> Any:
        return plain(self._plain(), *args, **kwargs)

    return make


for _name in ("Idup", "Idup_with_info"):
    setattr(Communicator, _name, _leaving(_name))
for _name in ("Dup", "Dup_with_info", "Clone", "Create", "Create_group", "Split", "Split_type"):
    setattr(Communicator, _name, _wrapping(_name))
