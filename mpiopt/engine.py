"""Runs calls on one private communicator: finds or makes the plan, runs it, explains failures.

An engine keeps its plans, and one scratch that all of them share, since its calls run one after
another. A communicator has two: one for its blocking calls, one for the background thread.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiopt import executor as x
from mpiopt import wire
from mpiopt.buffers import Buffer
from mpiopt.calls import Place
from mpiopt.errors import CollectiveError, CollectiveTimeout, FreedCommunicatorError
from mpiopt.ledger import Ledger
from mpiopt.plan import Call, Channel, Plan, Tuning
from mpiopt.rings import MISMATCH, UNREADABLE, Rings
from mpiopt.schedule import Kind

_PLANS = 256
_HOT = 16
_LINE = 64
# A call of so few bytes takes microseconds; with the interpreter lock it looks so often, no more.
_QUICK_BYTES = 16 << 10
_QUICK_PATIENCE = 200
_RING_ERRORS = {
    MISMATCH: "a message of another length or collective came",
    UNREADABLE: "the kernel did not let it read the sender's memory",
}


class Engine:
    """Plans, scratch and hot calls of one private duplicate of a communicator."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        tuning: Tuning,
        spins: int,
        nap_us: int,
        patience: int,
        rings: Rings | None = None,
    ) -> None:
        self.comm = comm
        self.size, self.rank = comm.size, comm.rank
        self.place = Place(self.rank, self.size, shared=rings is not None)
        self.patience = patience
        self.timeout: float | None = None
        self.ledger = Ledger(lambda: self._plans.values())
        self.fault: str | None = None
        self._channel = Channel(wire.handle(comm), tuning, spins, nap_us, rings)
        self._plans: OrderedDict[Call, Plan] = OrderedDict()
        self._at: dict[int, Plan] = {}
        self._scratch = np.empty(0, dtype=np.uint8)
        self._kept: list[Any] = []  # what unfinished messages may still read or write
        self._run = x.run.entry_point
        self.hot = np.zeros(x.TABLE + _HOT * x.ENTRY, dtype=np.int64)
        self.hot[x.T_ARRAY_TYPE], self.hot[x.T_PATIENCE] = wire.ARRAY_TYPE, _QUICK_PATIENCE
        self.hot_address = self.hot.ctypes.data
        self._hot_next = 0
        self._hot_kept: list[Any] = [None] * _HOT

    def execute(self, call: Call, send: Buffer | None, recv: Buffer | None) -> Plan:
        """Run a call to its end."""
        self.check_usable(call.collective)
        plan = self.plan(call)
        plan.words[x.H_INPUT] = send.address if send is not None else 0
        plan.words[x.H_OUTPUT] = recv.address if recv is not None else 0
        self._finish(plan, self._run(plan.address, self.patience), (send, recv))
        return plan

    def resume(self, code: int, buffers: tuple[Any, ...]) -> None:
        """Go on with the hot call that has just paused or failed."""
        self._finish(self._at[int(self.hot[x.T_PLAN])], code, buffers)

    def check_usable(self, collective: str) -> None:
        if self.fault is not None:
            raise FreedCommunicatorError(
                f"{collective}: rank {self.rank}: the communicator {self.fault}; make a new one "
                "with mpiopt.Communicator(comm)"
            )

    def plan(self, call: Call) -> Plan:
        plan = self._plans.get(call)
        if plan is None:
            plan = Plan(call, self.size, self.rank, self._channel)
            if len(self._plans) >= _PLANS:
                self._forget(self._plans.popitem(last=False)[1])
            self._plans[call] = plan
            self._at[plan.address] = plan
            self._grow_scratch(plan.scratch_bytes)
            plan.words[x.H_SCRATCH] = self._scratch_address
        else:
            self._plans.move_to_end(call)
        return plan

    def _forget(self, plan: Plan) -> None:
        self.ledger.retire(plan)
        del self._at[plan.address]
        self.cool()

    def _grow_scratch(self, size: int) -> None:
        if size + _LINE > self._scratch.size:
            self._scratch = np.empty(size + _LINE, dtype=np.uint8)
            for plan in self._plans.values():
                plan.words[x.H_SCRATCH] = self._scratch_address

    @property
    def _scratch_address(self) -> int:
        return -(-self._scratch.ctypes.data // _LINE) * _LINE

    def _finish(self, plan: Plan, code: int, buffers: tuple[Any, ...]) -> None:
        started = time.monotonic()
        try:
            while code == x.PAUSED:
                if self.timeout is not None and time.monotonic() - started > self.timeout:
                    raise CollectiveTimeout(self._waited(plan))
                code = self._run(plan.address, self.patience)
        except BaseException as stopped:
            self._give_up(plan, buffers, f"was left in the middle of {_name(plan)}: {stopped!r}")
            raise
        if code == x.FAILED:
            message = self._failed(plan)
            self._give_up(plan, buffers, f"is broken: {message}")
            raise CollectiveError(message)

    def _give_up(self, plan: Plan, buffers: tuple[Any, ...], fault: str) -> None:
        self.fault = fault
        self.cool()
        self._kept.append((plan, buffers, self._scratch))
        x.abandon.entry_point(plan.address)

    def _failed(self, plan: Plan) -> str:
        row = plan.row(int(plan.words[x.H_FAIL_ROW]))
        code = int(plan.words[x.H_FAIL_CODE])
        error = _RING_ERRORS.get(code) or MPI.Get_error_string(code)
        return (
            f"{_name(plan)}: rank {self.rank}, round {row[x.R_ROUND]}: {_act(row)}: {error}; "
            "do all ranks pass the same count and dtype? Communicator(debug=True) finds the odd one"
        )

    def _waited(self, plan: Plan) -> str:
        rows = [plan.row(number) for number in plan.waiting()]
        waits = sorted({f"round {row[x.R_ROUND]}: {_act(row)}" for row in rows})
        peers = sorted({int(row[x.R_PEER]) for row in rows})
        return (
            f"{_name(plan)}: rank {self.rank} waited {self.timeout:g} s for rank "
            f"{', '.join(map(str, peers))} ({'; '.join(waits)}); it has not entered the call, or "
            "waits for another rank itself. Raise timeout= if it is only slow"
        )

    def remember(
        self, word: int, extra: Any, algorithm: str, send: Any, recv: Any, plan: Plan
    ) -> None:
        """Let `replay` recognise a call from now on, if its buffers are plain arrays."""
        there, here = _signature(send), _signature(recv)
        if not wire.ARRAYS_READABLE or there is None or here is None:
            return
        slot, self._hot_next = self._hot_next, (self._hot_next + 1) % _HOT
        at = x.TABLE + slot * x.ENTRY
        # Only through rings: MPI runs Python (a request's query) while it holds its own lock, so
        # whoever keeps the interpreter's must not want MPI's.
        quick = self.place.shared and plan.buffer_bytes <= _QUICK_BYTES
        words = [word, id(extra), id(algorithm), *there, *here, plan.address, quick]
        self.hot[at : at + x.ENTRY] = words
        # An id is true while its object lives. The arrays themselves may go: they are not compared.
        dtypes = [argument.dtype for argument in (send, recv) if type(argument) is np.ndarray]
        self._hot_kept[slot] = (extra, algorithm, dtypes, plan)
        self.hot[x.T_ENTRIES] = max(self.hot[x.T_ENTRIES], slot + 1)

    def cool(self) -> None:
        """Forget all hot calls."""
        self.hot[x.T_ENTRIES] = 0
        self._hot_next = 0

    def free(self) -> None:
        if self.fault is None:
            self.fault = "has been freed"
        self.cool()
        if not self._kept:  # freeing waits for all ranks, who may never come
            self.comm.Free()


def _signature(argument: Any) -> tuple[int, int] | None:
    """How a hot call knows a buffer: an array by dtype and length, IN_PLACE and None as such."""
    if type(argument) is np.ndarray:
        return id(argument.dtype), argument.size
    return (id(argument), -1) if argument is None or argument is MPI.IN_PLACE else None


def _name(plan: Plan) -> str:
    return f"{plan.call.collective} ({plan.call.algorithm})"


def _act(row: Any) -> str:
    count, peer = row[x.R_COUNT], row[x.R_PEER]
    if row[x.R_KIND] == Kind.SEND:
        return f"sending {count} elements to rank {peer}"
    return f"receiving {count} elements from rank {peer}"
