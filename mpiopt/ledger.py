"""Counts what a communicator's collectives sent: rounds, messages, bits, bytes and seconds.

The executor counts in the plans themselves, at the calls that send; here the plans are added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mpiopt import executor as x
from mpiopt.plan import Plan


@dataclass
class Entry:
    """Totals of one rank for one collective and algorithm."""

    collective: str
    algorithm: str
    calls: int = 0
    rounds: int = 0
    messages: int = 0
    payload_bits: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0


class Ledger:
    """What this rank has sent through mpiopt's own collectives on one communicator."""

    def __init__(self, plans: Any) -> None:
        self._plans = plans  # a callable that gives the plans in use
        self._past: dict[tuple[str, str], Entry] = {}

    def retire(self, plan: Plan) -> None:
        """Keep the totals of a plan that is about to be forgotten."""
        _add(self._past, plan)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each collective and algorithm that has run."""
        totals = {key: Entry(**asdict(entry)) for key, entry in self._past.items()}
        for plan in self._live():
            _add(totals, plan)
        return [asdict(entry) for entry in totals.values() if entry.calls]

    def clear(self) -> None:
        """Start again from zero."""
        self._past.clear()
        for plan in self._live():
            plan.words[x.H_CALLS : x.HEADER] = 0

    def _live(self) -> Iterable[Plan]:
        plans: Iterable[Plan] = self._plans()
        return plans


def _add(totals: dict[tuple[str, str], Entry], plan: Plan) -> None:
    key = plan.call.collective, plan.call.algorithm
    entry = totals.setdefault(key, Entry(*key))
    calls = int(plan.words[x.H_CALLS])
    sent = int(plan.words[x.H_SENT])
    entry.calls += calls
    entry.rounds += calls * plan.schedule.round_count
    entry.messages += int(plan.words[x.H_MESSAGES])
    entry.payload_bits += 8 * sent
    entry.wire_bytes += sent
    entry.seconds += int(plan.words[x.H_NANOSECONDS]) * 1e-9
