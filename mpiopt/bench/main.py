"""Runs the benchmark on every rank: sizes -> work -> validation -> trials -> rows -> files.

MPI's own collective runs through plain mpi4py on a communicator of its own; ours through
`mpiopt.Communicator`; both on the same buffers, from the same loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from rich.console import Console

import mpiopt
from mpiopt.bench import rows as records
from mpiopt.bench import show, stats, trials
from mpiopt.bench.options import Options
from mpiopt.bench.rows import Row
from mpiopt.bench.sizes import format_size
from mpiopt.bench.work import Call, Work, element_count
from mpiopt.schedule import REDUCING


@dataclass(frozen=True, slots=True)
class Checked:
    """What one call of ours did: its outcome against MPI's, and its entry in the ledger."""

    ran: str
    rounds: int | None
    wire_bytes: int | None
    wrong: int | None
    max_error: float | None


MPI_ITSELF = Checked("mpi", None, None, None, None)


class Bench:
    """The two communicators and one rank's share of the run."""

    def __init__(self, options: Options, world: MPI.Intracomm) -> None:
        self.options = options
        self.plain = world.Dup()
        self.ours = mpiopt.Communicator(world)
        self.deadline_s = time.monotonic() + options.budget_s

    def works(self) -> list[Work]:
        """One for each different size; rounding may make two of them the same."""
        options, dtype = self.options, np.dtype(self.options.dtype)
        counts = {
            element_count(options.collective, self.plain.size, size, dtype): None
            for size in options.sizes
        }
        where = (self.plain.size, self.plain.rank)
        return [Work(options.collective, *where, count, dtype, options.op) for count in counts]

    def contenders(self, work: Work) -> dict[str, Call]:
        calls = {"mpi": work.bind(self.plain)}
        for name in self.options.algorithms:
            extra = {} if name == "auto" else {"algorithm": name}
            calls[name] = work.bind(self.ours, **extra)
        return calls

    def rows(self, work: Work, share_s: float) -> list[Row]:
        """Check, then time, every contender at one size."""
        calls = self.contenders(work)
        checked = {"mpi": MPI_ITSELF} | {
            name: self.check(work, call, calls["mpi"])
            for name, call in calls.items()
            if name != "mpi"
        }
        options = self.options
        plan = trials.calibrate(self.plain, calls, options.warmup, share_s, options.trials)
        times = trials.measure(self.plain, calls, plan, options.seed + work.count)
        spreads = {name: stats.spread(found) for name, found in times.items()}
        return [
            self.row(work, name, spreads[name], spreads["mpi"], checked[name]) for name in calls
        ]

    def check(self, work: Work, call: Call, mpi_call: Call) -> Checked:
        """Make one call of ours, note what the ledger says of it, compare it if asked to."""
        inputs = work.exact_inputs(self.options.seed)
        self.ours.ledger.clear()
        got = work.outcome(call, inputs)
        entries = self.ours.ledger.rows()
        ran = "+".join(str(entry["algorithm"]) for entry in entries) or "mpi"
        rounds = _largest(self.plain, sum(entry["rounds"] for entry in entries))
        wire_bytes = _largest(self.plain, sum(entry["wire_bytes"] for entry in entries))
        if not self.options.validate:
            return Checked(ran, rounds, wire_bytes, None, None)
        wrong, error = _differences(got, work.outcome(mpi_call, inputs))
        wrong = self.plain.allreduce(wrong)
        return Checked(ran, rounds, wire_bytes, wrong, self.plain.allreduce(error, MPI.MAX))

    def row(
        self, work: Work, name: str, ours: stats.Spread, mpi: stats.Spread, checked: Checked
    ) -> Row:
        algbw = stats.rate_gbps(work.size_bytes, ours.median_us)
        return Row(
            collective=work.collective,
            algo=name,
            codec=None,
            dtype=str(work.dtype),
            op=work.op if work.collective in REDUCING else None,
            ranks=work.ranks,
            size_bytes=work.size_bytes,
            count=work.count,
            **asdict(ours),
            algbw_GBps=algbw,
            busbw_GBps=algbw * stats.bus_factor(work.collective, work.ranks),
            vs_mpi=mpi.median_us / ours.median_us,
            **asdict(checked),
        )

    def share_s(self, left: int) -> float:
        """Time for the next of `left` sizes, the same on all ranks."""
        mine = max(0.0, self.deadline_s - time.monotonic()) / left
        return float(self.plain.bcast(mine))


def _largest(comm: MPI.Intracomm, value: int) -> int:
    return int(comm.allreduce(value, MPI.MAX))


def _differences(got: Any, expected: Any) -> tuple[int, float]:
    """Elements that differ, and the largest difference."""
    differ = got != expected
    if not differ.any():
        return 0, 0.0
    wide = np.result_type(got.dtype, np.float64)
    gap = np.abs(got[differ].astype(wide) - expected[differ].astype(wide))
    return int(differ.sum()), float(gap.max())


def run(options: Options, terminal: show.Terminal | None) -> int:
    """The whole benchmark on this rank; exit code 1 if a result is wrong."""
    world = MPI.COMM_WORLD
    out, err = show.consoles(terminal)
    err.quiet = out.quiet = world.rank != 0
    bench = Bench(options, world)
    works = bench.works()
    found: list[Row] = []
    # A launcher forwards the two streams in any order: on a terminal, one of them must do.
    shown = out if out.is_terminal else err
    with show.progress(shown, f"bench {options.collective}", len(works)) as advance:
        for index, work in enumerate(works):
            advance(format_size(work.size_bytes))
            found += bench.rows(work, bench.share_s(len(works) - index))
    nodes = len(set(world.allgather(MPI.Get_processor_name())))
    if world.rank == 0:
        report(out, options, found, nodes)
    return int(any(row.wrong for row in found))


def report(out: Console, options: Options, found: Sequence[Row], nodes: int) -> None:
    """Table, summary and files; on rank 0."""
    machine = records.machine(library(), nodes)
    out.print(show.heading(machine, found[0].ranks), highlight=False)
    out.print(show.table(found))
    for line in show.summary(found):
        out.print(line, highlight=False, soft_wrap=True)
    if options.json:
        records.write_whole(options.json, records.to_json(found, options.record(), machine))
    if options.csv:
        records.write_whole(options.csv, records.to_csv(found))


def library() -> str:
    """The MPI library's name and version, without its build host."""
    name, numbers = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, numbers))}"
