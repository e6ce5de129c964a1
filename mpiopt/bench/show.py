"""Turns rows into what a user reads: progress while measuring, a table, a summary in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mpiopt.bench.rows import Row
from mpiopt.bench.sizes import format_size
from mpiopt.bench.stats import EVEN, Verdict, verdict

Advance = Callable[[str], None]

COLUMNS = (
    "size", "count", "algorithm", "MPI us", "ours us", "vs MPI", "algbw", "busbw", "wrong",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the launching process's output is connected to; a rank's own is only a pipe."""

    out: bool
    err: bool
    width: int

    @classmethod
    def parse(cls, text: str) -> Terminal:
        """From 'out,err,120': those of the two that are terminals, and the width."""
        *names, width = text.split(",")
        return cls("out" in names, "err" in names, int(width))

    def __str__(self) -> str:
        names = [name for name in ("out", "err") if getattr(self, name)]
        return ",".join([*names, str(self.width)])


def consoles(terminal: Terminal | None) -> tuple[Console, Console]:
    """Standard output and standard error."""
    if terminal is None:
        return Console(), Console(stderr=True)
    width = terminal.width or None
    return (
        Console(force_terminal=terminal.out, width=width),
        Console(stderr=True, force_terminal=terminal.err, width=width),
    )


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Advance]:
    """Yield a function to call at the start of each of `total` parts: a bar, or plain lines."""
    if not console.is_terminal:
        done = iter(range(1, total + 1))
        yield lambda what: console.print(f"{title}: {next(done)}/{total} {what}", highlight=False)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}"),
        console=console,
        transient=True,
        auto_refresh=False,  # its thread would take turns with what is being timed
    )
    with bar:
        task = bar.add_task(title, total=total, what="")
        started = iter(range(total))
        yield lambda what: bar.update(task, completed=next(started), what=what, refresh=True)


def heading(machine: Mapping[str, Any], ranks: int) -> str:
    """Where the figures come from, and a warning if ranks share CPUs."""
    nodes, cores = machine["nodes"], machine["cores"]
    text = f"{machine['mpi']}; {nodes} node{'s' * (nodes > 1)}, {cores} cores, {machine['cpu']}"
    if ranks > nodes * machine["cpus"]:
        text += f"\n{ranks} ranks share {nodes * machine['cpus']} CPUs: times are mostly waiting"
    return text


def table(rows: Sequence[Row]) -> Table:
    """One line for each of ours, beside MPI's own at the same size."""
    first = rows[0]
    kind = f"{first.dtype} {first.op}" if first.op else first.dtype
    shown = Table(title=f"{first.collective}, {first.ranks} ranks, {kind}", title_justify="left")
    columns = (
        "size",
        "count",
        "algorithm",
        "MPI us",
        "ours us",
        "vs MPI",
        "algbw",
        "busbw",
        "wrong",
    )
    for name in columns:
        justify: Any = "left" if name == "algorithm" else "right"
        shown.add_column(name, justify=justify, no_wrap=name != "algorithm")
    mpi = {row.size_bytes: row for row in rows if row.algo == "mpi"}
    for row in rows:
        if row.algo != "mpi":
            shown.add_row(*_cells(row, mpi[row.size_bytes]))
    shown.caption = "median of interleaved trials; algbw and busbw are ours, in GB/s"
    return shown


def _cells(row: Row, mpi: Row) -> tuple[str, ...]:
    colour = "green" if row.vs_mpi > 1 + EVEN else "red" if row.vs_mpi < 1 - EVEN else "default"
    return (
        format_size(row.size_bytes),
        str(row.count),
        row.algo if row.ran == row.algo else f"{row.ran} ({row.algo})",
        format_us(mpi.median_us),
        format_us(row.median_us),
        f"[{colour}]{row.vs_mpi:.2f}[/]",
        format_rate(row.algbw_GBps),
        format_rate(row.busbw_GBps),
        "-" if row.wrong is None else f"[bold red]{row.wrong}[/]" if row.wrong else "0",
    )


def format_us(time_us: float) -> str:
    """Three significant digits, never in scientific notation.

    >>> format_us(1.2345), format_us(123.45), format_us(36912.7)
    ('1.23', '123', '36913')
    """
    return (
        f"{time_us:.2f}"
        if time_us < 10
        else f"{time_us:.1f}"
        if time_us < 100
        else f"{time_us:.0f}"
    )


def format_rate(gbps: float) -> str:
    """Two decimals, three below 1."""
    return f"{gbps:.{2 if gbps >= 1 else 3}f}"


def summary(rows: Sequence[Row]) -> list[str]:
    """One sentence for each algorithm: losses as plainly as wins."""
    ratios: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.algo != "mpi":
            ratios.setdefault(row.algo, {})[row.size_bytes] = row.vs_mpi
    return [_sentence(algo, verdict(found), len(found)) for algo, found in ratios.items()]


def _sentence(algo: str, found: Verdict, sizes: int) -> str:
    parts = [f"wins at {len(found.wins)} of {sizes} sizes"]
    if found.wins:
        parts[0] += f" (best {found.best[1]:.2f} at {format_size(found.best[0])})"
    if found.even:
        parts.append(f"even at {len(found.even)} (within {EVEN:.0%})")
    parts.append(f"loses at {len(found.losses)}")
    if found.losses:
        where = ", ".join(format_size(size) for size in found.losses)
        parts[-1] += f" ({where}; worst {found.worst[1]:.2f} at {format_size(found.worst[0])})"
    return f"{algo}: geometric mean {found.mean:.2f} x MPI's own; {', '.join(parts)}"
