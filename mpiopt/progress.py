"""Runs non-blocking collectives on a background thread, behind requests that MPI knows.

Calls on one communicator run in the order in which they were started, one after another, on a
private communicator of their own: they meet neither the blocking calls nor those of others. A
request is one of MPI's generalised requests, so mpi4py's Waitall, Testany and the like take it too.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from typing import Any, Literal

from mpi4py import MPI

from mpiopt.calls import Prepared
from mpiopt.engine import Engine

_STOP_S = 5.0


class Request(MPI.Grequest):
    """A collective under way."""

    _outcome: _Outcome

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the end without keeping a processor busy; raises what went wrong."""
        self._outcome.ended.wait()
        self._end(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the end has come; raises what went wrong."""
        if self._outcome.ended.is_set():
            self._end(status)
            return True
        return False

    def wait(self, status: MPI.Status | None = None) -> None:
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        return self.Test(status), None

    def _end(self, status: MPI.Status | None) -> None:
        if self._outcome.error is not None:
            # MPI would report a nameless error, and mpi4py print a traceback for it.
            raise self._outcome.error
        super().Wait(status)


class _Outcome:
    """How a call ended; shared by the request and the thread."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def query(self, status: MPI.Status) -> None:
        """MPI asks this when anybody waits through MPI itself."""
        if self.error is not None:
            raise MPI.Exception(MPI.ERR_OTHER) from self.error


class Progress:
    """The background thread of one communicator; it starts with the first non-blocking call."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, prepared: Prepared) -> Request:
        """Start a call; its buffers stay alive until it has ended."""
        if self._thread is None:
            name = f"mpiopt-rank{self.engine.rank}"
            arguments = (self.engine, self._jobs)
            self._thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
            self._thread.start()
            # MPI must not be finalised under a running thread. A weak reference: the hook must not
            # keep the communicator.
            atexit.register(_stop, weakref.ref(self))
        outcome = _Outcome()
        # mpi4py's Start gives a plain Grequest whatever it is called on.
        request = Request(MPI.Grequest.Start(outcome.query))
        request._outcome = outcome
        self._jobs.put((prepared, request, outcome))
        return request

    def stop(self) -> None:
        """Let the thread finish what it was given, and end it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(_STOP_S)
            self._thread = None


def _stop(reference: weakref.ref[Progress]) -> None:
    progress = reference()
    if progress is not None:
        progress.stop()


def _work(engine: Engine, jobs: queue.SimpleQueue[Any]) -> None:
    while (job := jobs.get()) is not None:
        prepared, request, outcome = job
        try:
            engine.execute(*prepared)
        except BaseException as error:
            outcome.error = error
        # MPI first: whoever waits for the event asks MPI next.
        MPI.Grequest.Complete(request)
        outcome.ended.set()
