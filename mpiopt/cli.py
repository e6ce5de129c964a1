"""Turns `mpiopt COMMAND ...` into calls: parse, check, start ranks if need be, run.

A user's mistake is a `UsageError`: one line on standard error and exit code 2, before any rank
starts. Imports are made by the command that needs them, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpiopt import __version__, launch

if TYPE_CHECKING:
    from mpiopt.bench.options import Options

Command = Callable[[argparse.Namespace, Sequence[str]], int]

USAGE_ERROR = 2
DEFAULT_RANKS = 2
# What a rank runs: this very package, wherever it was found, and not one in the current folder.
RANK_MAIN = (
    "import sys; sys.path[0] = sys.argv.pop(1); from mpiopt.cli import main; sys.exit(main())"
)

BENCH_EXAMPLES = """\
examples:
  mpiopt bench                                        all-reduce on 2 ranks, 8 B to 64 MB
  mpiopt bench allreduce -n 4 -e 1M --algo all -c     every algorithm, results checked
  mpiopt bench bcast -d float64 -b 1K -J out.json     rows for later
  srun -n 64 mpiopt bench                             under a launcher: its ranks are used
"""
CHECK_EXAMPLES = """\
examples:
  mpiopt check                    every schedule at 1 to 33 ranks, every root
  mpiopt check --max-size 8       a quick look
"""
DRAW_EXAMPLES = """\
examples:
  mpiopt draw ring -n 4 --text                            the state table, round by round
  mpiopt draw ring -n 4 -o ring.svg                       a space-time picture
  mpiopt draw binomial_tree --collective bcast -n 8 --root 3 --text
"""


class UsageError(Exception):
    """What the user wrote cannot be done; the message says why and what can."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(argv)
    try:
        command: Command = args.command
        return command(args, argv)
    except (UsageError, launch.LaunchError) as error:
        print(f"mpiopt: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `mpiopt ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpiopt", description="MPI collectives as data: proved, drawn, compiled, measured."
    )
    parser.add_argument("--version", action="version", version=f"mpiopt {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_bench(commands)
    _add_check(commands)
    _add_draw(commands)
    return parser


def _add(commands: Any, name: str, run: Command, about: str, examples: str) -> Any:
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=run)
    return parser


def _add_bench(commands: Any) -> None:
    about = "time a collective's algorithms against MPI's own, interleaved in one run"
    parser = _add(commands, "bench", bench, about, BENCH_EXAMPLES)
    option = parser.add_argument
    option("collective", nargs="?", default="allreduce", metavar="COLLECTIVE")
    option("-n", "--ranks", type=int, help=f"ranks to start (default {DEFAULT_RANKS})")
    option("-b", "--begin", default="8", metavar="SIZE", help="smallest size (8)")
    option("-e", "--end", default="64M", metavar="SIZE", help="largest size, included (64M)")
    option("-f", "--factor", type=int, default=4, help="from one size to the next (4)")
    option("-i", "--iterations", type=int, metavar="N", help="trials (as many as time allows)")
    option("-w", "--warmup", type=int, default=3, metavar="N", help="untimed calls first (3)")
    option("-c", "--check", action="store_true", help="compare results with MPI's; exit 1 if wrong")
    option("-d", "--dtype", default="float32", help="a NumPy type name (float32)")
    option("-o", "--op", default="sum", help="sum, prod, max, min, land, band, ... (sum)")
    option("--algo", default="auto", metavar="A,B", help="algorithms, or all (auto)")
    option("--seconds", type=float, default=30.0, help="time to spend on trials, about (30)")
    option("--seed", type=int, default=1, help="of the order of trials and the checked data (1)")
    option("-J", "--json", type=Path, metavar="FILE", help="write rows and machine as JSON")
    option("--csv", type=Path, metavar="FILE", help="write rows as CSV")
    option("--terminal", help=argparse.SUPPRESS)


def _add_check(commands: Any) -> None:
    about = "prove every schedule: all contributions once, all messages matched, no deadlock"
    parser = _add(commands, "check", check, about, CHECK_EXAMPLES)
    parser.add_argument("--max-size", type=int, default=33, metavar="P", help="ranks, 1 to P (33)")


def _add_draw(commands: Any) -> None:
    about = "show a schedule as a state table or as a space-time picture"
    parser = _add(commands, "draw", draw, about, DRAW_EXAMPLES)
    option = parser.add_argument
    option("algorithm", metavar="ALGORITHM")
    option("--collective", default="allreduce", help="(allreduce)")
    option("-n", "--ranks", type=int, default=4, help="(4)")
    option("--root", type=int, default=0, help="(0)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", type=Path, metavar="FILE.svg", help="write the picture")
    where.add_argument("--text", action="store_true", help="print the state table (default)")


def bench(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from mpiopt.bench import options

    try:
        chosen = options.parse(args)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if launch.launched() is None:
        ranks = DEFAULT_RANKS if args.ranks is None else args.ranks
        root = str(Path(__file__).parents[1])
        full = [sys.executable, "-c", RANK_MAIN, root, *argv, f"--terminal={_terminal()}"]
        return launch.run(ranks, full)
    return _bench_as_rank(args, chosen)


def _terminal() -> str:
    """Which of our outputs are terminals, and how wide: a rank cannot see that."""
    ends = (("out", sys.stdout), ("err", sys.stderr))
    names = [name for name, end in ends if end.isatty()]
    width = shutil.get_terminal_size((100, 24)).columns if names else 100
    return ",".join([*names, str(width)])


def _bench_as_rank(args: argparse.Namespace, chosen: Options) -> int:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    launch.verify(world.size, MPI.Get_library_version().partition(",")[0])
    if args.ranks not in (None, world.size):
        raise UsageError(f"-n {args.ranks}, but the launcher started {world.size}; leave -n out")
    try:
        from mpiopt.bench import main as bench_main
        from mpiopt.bench.show import Terminal

        return bench_main.run(chosen, Terminal.parse(args.terminal) if args.terminal else None)
    except Exception:
        # The other ranks may be waiting for this one: end them too, with the reason on screen.
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        world.Abort(1)
        raise


def check(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from rich.console import Console
    from rich.table import Table

    from mpiopt.algorithms import algorithms
    from mpiopt.bench.show import progress
    from mpiopt.check import ScheduleError, prove_all
    from mpiopt.schedule import COLLECTIVES

    if args.max_size < 1:
        raise UsageError(f"--max-size {args.max_size}: at least 1 rank is needed")
    table = Table(title=f"Proofs at 1 to {args.max_size} ranks", title_justify="left")
    for name in ("collective", "algorithm", "sizes", "roots", "proofs", "seconds"):
        table.add_column(name, justify="right" if name in ("proofs", "seconds") else "left")
    total = sum(len(algorithms(collective)) for collective in COLLECTIVES)
    try:
        with progress(Console(stderr=True), "check", total) as advance:
            proofs = prove_all(
                args.max_size, lambda proof: advance(f"{proof.collective} {proof.algorithm}")
            )
    except ScheduleError as error:
        print(f"mpiopt: not proved: {error}", file=sys.stderr)
        return 1
    for p in proofs:
        cells = (p.collective, p.algorithm, p.sizes, p.roots, p.proofs, f"{p.seconds:.2f}")
        table.add_row(*map(str, cells))
    console = Console()
    console.print(table)
    seconds = sum(proof.seconds for proof in proofs)
    console.print(f"all {sum(proof.proofs for proof in proofs)} proved in {seconds:.1f} s")
    return 0


def draw(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from mpiopt.algorithms import schedule
    from mpiopt.draw import state_table, svg

    if args.ranks < 1:
        raise UsageError(f"-n {args.ranks}: at least 1 rank is needed")
    try:
        schedules = [
            schedule(args.collective, args.algorithm, args.ranks, rank, args.root)
            for rank in range(args.ranks)
        ]
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.output is None:
        print(state_table(schedules))
        return 0
    try:
        args.output.write_text(svg(schedules))
    except OSError as error:
        raise UsageError(f"cannot write {args.output}: {error.strerror}") from error
    return 0
