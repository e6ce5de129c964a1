"""Runs mpi4py's own tests on mpiopt.Communicator: `python tests/mpi4py_suite.py --ranks 1,2,3`.

pip fetches the source of the installed mpi4py version, whose tests are unpacked to a temporary
folder and run under mpiexec, their text untouched. What is swapped is mpi4py's COMM_WORLD and
COMM_SELF, before the tests are imported: their duplicates are then mpiopt's too.

A test passes if it passes on every rank. The ledgers prove that it was mpiopt that ran the
collectives: each must have calls, blocking and in the background, or the run fails.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mpiopt import launch

MODULES = (
    "test_cco_buf",
    "test_cco_vec",
    "test_cco_nb_buf",
    "test_cco_nb_vec",
    "test_msgspec",
    "test_msgzero",
    "test_comm",
    "test_subclass",
    "test_grequest",
)
# Tests of something outside of mpiopt, and why they cannot hold here.
OUTSIDE = {
    f"test_comm.TestComm{name}.testPickle": "mpi4py pickles its own two communicators by name and "
    "no duplicate of them; mpiopt's are duplicates"
    for name in ("Self", "World")
}
COLLECTIVES = (
    "barrier",
    "bcast",
    "reduce",
    "allreduce",
    "reduce_scatter",
    "allgather",
    "gather",
    "scatter",
    "alltoall",
)
TIMEOUT_S = 600
GRACE_S = 15  # for the ranks of a run that hangs to show where
CALL_TIMEOUT_S = 60
FAILED, PASSED, SKIPPED = "failed", "passed", "skipped"
BLOCKING, BACKGROUND = "blocking", "background"
Calls = Counter[tuple[str, str]]  # by collective, and by BLOCKING or BACKGROUND


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--ranks", default="1,2,3", help="rank counts, one run each")
    parser.add_argument("--sdist", type=Path, help="folder that keeps mpi4py's source archive")
    parser.add_argument("--tests", type=Path, help="mpi4py's tests, if already unpacked")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for one run")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("modules", nargs="*", help="test modules; if left out, all that matter")
    options = parser.parse_args(argv)
    if options.as_rank:
        return run_as_rank(options.tests, options.modules, options.timeout)
    with tempfile.TemporaryDirectory(prefix="mpi4py-suite-") as scratch:
        tests = options.tests
        if tests is None:
            tests = unpack(fetch(options.sdist or Path(scratch)), Path(scratch))
        runs = [int(ranks) for ranks in options.ranks.split(",")]
        return max([start(ranks, tests, options.modules, options.timeout) for ranks in runs])


def fetch(folder: Path) -> Path:
    """The source archive of the installed mpi4py: from `folder`, or through pip into it."""
    release = version("mpi4py")
    archive = folder / f"mpi4py-{release}.tar.gz"
    if not archive.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        pip += ["--no-binary", "mpi4py", "--dest", str(folder), f"mpi4py=={release}"]
        subprocess.run(pip, check=True)
    return archive


def unpack(archive: Path, folder: Path) -> Path:
    """The folder of the archive's tests, unpacked below `folder`."""
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / "test"


def start(ranks: int, tests: Path, modules: Sequence[str], timeout_s: float) -> int:
    """Exit code of the tests on that many ranks."""
    argv = [sys.executable, __file__, "--as-rank", "--tests", str(tests)]
    argv += ["--timeout", str(timeout_s), *modules]
    # The order of sets, and so perhaps of calls, must be the same on all ranks.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    code = launch.run(ranks, argv, env=env, timeout_s=timeout_s + GRACE_S)
    if code:
        print(f"mpi4py's tests on {ranks} ranks: exit code {code}", flush=True)
    return code


def run_as_rank(tests: Path, modules: Sequence[str], timeout_s: float) -> int:
    """Run the modules on this rank and judge them with all others; the exit code."""
    from mpi4py import MPI

    faulthandler.dump_traceback_later(timeout_s, exit=True)
    world = MPI.COMM_WORLD
    calls: Calls = Counter()
    swapped = swap(calls)
    verdicts = Verdicts()
    for test in load(tests, modules or MODULES):
        verdicts.judge(test)
    for comm in swapped:
        comm.Free()
    gathered = world.gather(verdicts.said)
    total = world.reduce(calls)
    good = None
    if gathered is not None and total is not None:
        print(f"\nmpi4py {version('mpi4py')}'s tests on {world.size} ranks, {MPI.get_vendor()}")
        idle = show_use(total)
        good = report(gathered)
        if idle and not modules:
            print(f"mpiopt has not run {', '.join(idle)}: of these nothing is proved")
            good = False
    return 0 if world.bcast(good) else 1


def swap(calls: Calls) -> list[Any]:
    """Put mpiopt's communicators in the place of mpi4py's two, and return them.

    Each adds what it has run to `calls` when it is freed.
    """
    from mpi4py import MPI

    from mpiopt import Communicator

    free = Communicator.Free

    def count_and_free(self: Communicator) -> None:
        for row in self.ledger.rows():
            calls[row["collective"], BLOCKING] += row["calls"]
        for row in self.background_ledger.rows():
            calls[row["collective"], BACKGROUND] += row["calls"]
        free(self)

    Communicator.Free = count_and_free  # type: ignore[method-assign]
    swapped = {
        name: Communicator(getattr(MPI, name), timeout=CALL_TIMEOUT_S)
        for name in ("COMM_WORLD", "COMM_SELF")
    }
    vars(MPI).update(swapped)
    return list(swapped.values())


def load(tests: Path, modules: Sequence[str]) -> Iterator[unittest.TestCase]:
    """The tests of the modules, one by one."""
    sys.path.insert(0, str(tests))
    # Hidden, as by mpi4py's own runner, lest its tests ask Numba and CuPy for a GPU.
    shown = {name: sys.modules.pop(name, None) for name in ("numba", "cupy")}
    sys.modules.update(dict.fromkeys(shown))  # type: ignore[arg-type]
    loaded = [importlib.import_module(name) for name in modules]
    for name, module in shown.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module
    for module in loaded:
        yield from _flat(unittest.defaultTestLoader.loadTestsFromModule(module))


def _flat(tests: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


class Verdicts(unittest.TestResult):
    """How each test ended on this rank, and what it had to say, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, tuple[str, str]] = {}

    def judge(self, test: unittest.TestCase) -> None:
        name = test.id()
        if name in OUTSIDE:
            self.said[name] = SKIPPED, OUTSIDE[name]
            return
        bad, skipped = len(self.errors) + len(self.failures), len(self.skipped)
        test.run(self)
        if len(self.errors) + len(self.failures) > bad or self.unexpectedSuccesses:
            texts = [text for case, text in self.errors + self.failures if case is test]
            self.said[name] = FAILED, "\n".join(texts) or "it succeeded unexpectedly"
            # At once, for the other ranks may now wait for ever.
            print(f"{FAILED}: {name}: {self.said[name][1]}", file=sys.stderr, flush=True)
            self.unexpectedSuccesses.clear()
        elif len(self.skipped) > skipped:
            self.said[name] = SKIPPED, self.skipped[-1][1]
        else:
            self.said[name] = PASSED, ""


def report(ranks: list[dict[str, tuple[str, str]]]) -> bool:
    """Print what did not pass, and counts by module; whether nothing failed."""
    modules: dict[str, Counter[str]] = {}
    for test in dict.fromkeys(test for said in ranks for test in said):
        said = [rank.get(test, (FAILED, "it was not run")) for rank in ranks]
        verdicts = [verdict for verdict, _ in said]
        verdict = FAILED if FAILED in verdicts else min(verdicts)  # passed before skipped
        modules.setdefault(test.partition(".")[0], Counter())[verdict] += 1
        if verdict == FAILED:
            print(f"failed: {test} on rank {', '.join(_where(FAILED, verdicts))}")
        elif verdict == SKIPPED:
            print(f"skipped: {test}: {said[0][1]}")
    for module, counts in modules.items():
        print(f"  {module:16} {_counted(counts)}")
    total = sum(modules.values(), Counter[str]())
    print(_counted(total), flush=True)
    return not total[FAILED]


def _where(verdict: str, verdicts: Sequence[str]) -> list[str]:
    return [str(rank) for rank, mine in enumerate(verdicts) if mine == verdict]


def _counted(verdicts: Counter[str]) -> str:
    return ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in (PASSED, FAILED, SKIPPED))


def show_use(calls: Calls) -> list[str]:
    """Print the calls that mpiopt ran, on all ranks; the collectives of which it ran none."""
    for name in COLLECTIVES:
        print(f"  {name:16} {calls[name, BLOCKING]} blocking, {calls[name, BACKGROUND]} background")
    print(f"{sum(calls.values())} calls run by mpiopt")
    return [name for name in COLLECTIVES if not (calls[name, BLOCKING] and calls[name, BACKGROUND])]


if __name__ == "__main__":
    sys.exit(main())
