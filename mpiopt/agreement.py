"""Lets all ranks compare what they are about to call, and names the one that differs.

Costs an all-gather of a few hundred bytes for each call, by MPI's own means: for finding mistakes,
not for production.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiopt.calls import Prepared
from mpiopt.errors import CollectiveTimeout, MismatchError

_BYTES = 256
_NAP_S = 1e-4
_REFUSED = "refused: "


class Agreement:
    """One rank's side of the comparison."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._calls = 0
        self.timeout: float | None = None
        self._unfinished: list[Any] = []

    def reach(self, name: str, prepared: Prepared | None) -> None:
        """Compare a call with everybody's; raises on every rank if one differs."""
        mine = f"{name} by MPI" if prepared is None else _describe(name, prepared)
        texts = self._exchange(mine)
        if len(set(texts)) > 1:
            raise MismatchError(self._explain(texts))

    def refuse(self, reason: str) -> None:
        """Tell the others that this rank's call is an error, so that they do not wait for it."""
        self._exchange(_REFUSED + reason)

    def _exchange(self, mine: str) -> list[str]:
        self._calls += 1
        sent = np.zeros(_BYTES, dtype=np.uint8)
        text = mine.encode()[:_BYTES]
        sent[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        received = np.empty((self._comm.size, _BYTES), dtype=np.uint8)
        request = self._comm.Iallgather(sent, received)
        started = time.monotonic()
        while not request.Test():
            if self.timeout is not None and time.monotonic() - started > self.timeout:
                self._unfinished.append((request, sent, received))  # MPI may still write there
                raise CollectiveTimeout(
                    f"rank {self._comm.rank} waited {self.timeout:g} s in call {self._calls} "
                    f"({mine}) for the other ranks to call anything at all"
                )
            time.sleep(_NAP_S)
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in received]

    def _explain(self, texts: list[str]) -> str:
        usual, votes = Counter(texts).most_common(1)[0]
        odd = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text != usual]
        usual_ranks = [str(rank) for rank, text in enumerate(texts) if text == usual]
        return (
            f"call {self._calls}: the ranks do not agree. {'; '.join(odd)}; but rank "
            f"{', '.join(usual_ranks[:8])}{' ...' if votes > 8 else ''}: {usual}. Collective, "
            "counts, dtype, op, root and algorithm must match"
        )

    def free(self) -> None:
        self._comm.Free()


def _describe(name: str, prepared: Prepared) -> str:
    """What must be the same on all ranks."""
    call = prepared.call
    counts = "" if call.uneven else f" of {_counts(call.counts)}"
    op = f", op {call.op}" if call.op else ""
    root = (
        f", root {call.root}" if call.collective in ("bcast", "reduce", "gather", "scatter") else ""
    )
    # Data that is only moved may have another name for the same bytes on another rank.
    dtype = call.dtype.name if call.op else f"{call.dtype.itemsize}-byte elements"
    return f"{name}{counts} {dtype}{op}{root}, algorithm {call.algorithm}"


def _counts(counts: tuple[int, ...]) -> str:
    if len(set(counts)) <= 1:
        return str(counts[0]) if counts else "no"
    text = ",".join(map(str, counts))
    return f"[{text if len(text) < 100 else f'{text[:80]}..., sum {sum(counts)}'}]"
