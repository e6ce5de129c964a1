"""Makes every test's outcome collective: what fails on one rank fails on all, and is named.

After each phase of each test the ranks exchange verdicts on a communicator of their own, so they
always agree on what to run next. Rank 0 reports for all of them; the others are silent, and every
rank keeps a *diary*, rank-R.log in --diaries, which gets its failures as they happen and, shortly
before a test's timeout, the stacks of its threads. A rank that failed waits PATIENCE_S for the
others to finish the test, then ends the job: they are waiting for a message that will not come.
"""

from __future__ import annotations

import faulthandler
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import create_terminal_writer
from mpi4py import MPI

PATIENCE_S = 20.0
STACKS_BEFORE_TIMEOUT_S = 3.0

VERDICTS = MPI.COMM_WORLD.Dup()
RANK, SIZE = VERDICTS.rank, VERDICTS.size
DIARY = pytest.StashKey[Any]()

Agree = Callable[..., None]


@pytest.fixture
def comm() -> Iterator[Any]:
    """An mpiopt.Communicator over the world, new for each test."""
    import mpiopt

    communicator = mpiopt.Communicator(MPI.COMM_WORLD)
    yield communicator
    if communicator != MPI.COMM_NULL:
        communicator.Free()


@pytest.fixture
def agree() -> Agree:
    """agree(ok, message): assert on all ranks that all of them are ok; name those that are not."""

    def agree(ok: bool, message: str = "") -> None:
        __tracebackhide__ = True
        verdicts = _gather((bool(ok), message), patience_s=None)
        odd = [f"rank {rank}: {said}" for rank, (fine, said) in enumerate(verdicts) if not fine]
        if odd:
            pytest.fail("; ".join(odd))

    return agree


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--diaries", help="folder for each rank's failures and stacks")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--diaries")
    if folder is None:
        folder = VERDICTS.bcast(tempfile.mkdtemp(prefix="mpiopt-tests-") if RANK == 0 else None)
    config.stash[DIARY] = (Path(folder) / f"rank-{RANK}.log").open("a")
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if RANK > 0 and reporter is not None:
        reporter._tw = create_terminal_writer(config, io.StringIO())


def pytest_report_header(config: pytest.Config) -> str:
    library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0")
    return f"{library}, {SIZE} ranks; diaries: {Path(config.stash[DIARY].name).parent}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Have the stacks written, by a thread that needs no interpreter, before the timeout acts."""
    diary, limit_s = item.config.stash[DIARY], _timeout_s(item)
    if limit_s > STACKS_BEFORE_TIMEOUT_S:
        faulthandler.dump_traceback_later(limit_s - STACKS_BEFORE_TIMEOUT_S, file=diary)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    del call
    report = yield
    diary = item.config.stash[DIARY]
    if report.failed:
        print(f"{item.nodeid} ({report.when})\n{report.longreprtext}", file=diary, flush=True)
    mine = (report.nodeid, report.when, report.outcome, report.longreprtext)
    verdicts = _gather(mine, patience_s=PATIENCE_S if report.failed else None)
    places = {verdict[:2] for verdict in verdicts}
    if len(places) > 1:
        _end_job(f"ranks run different tests: {sorted(places)}; is the parametrisation ordered?")
    if report.failed:  # rank 0 shows it; the diary is for what rank 0 cannot know
        diary.truncate(0)
    _combine(report, [verdict[2:] for verdict in verdicts])
    return report


def _combine(report: pytest.TestReport, verdicts: list[tuple[str, str]]) -> None:
    """Turn the ranks' outcomes into one; rank 0's report holds every rank's text, each once."""
    outcomes = [outcome for outcome, _ in verdicts]
    if len(set(outcomes)) == 1 and outcomes[0] != "failed":
        return
    ranks_by_text: dict[str, list[int]] = {}
    for rank, (outcome, text) in enumerate(verdicts):
        if outcome == "failed" or "failed" not in outcomes:
            text = re.sub(r"0x[0-9a-f]+", "0x...", f"{outcome}\n{text}")
            ranks_by_text.setdefault(text, []).append(rank)
    report.outcome = "failed"
    report.longrepr = "\n".join(
        f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in ranks_by_text.items()
    )


def _gather(value: Any, patience_s: float | None) -> list[Any]:
    """Every rank's value; ends the job if the others do not arrive within `patience_s`."""
    request = VERDICTS.Ibarrier()
    start = time.monotonic()
    while not request.Test():
        waited_s = time.monotonic() - start
        if patience_s is not None and waited_s > patience_s:
            _end_job(f"it failed, and {patience_s:g} s later others are still in the test\n{value}")
        time.sleep(0 if waited_s < 1e-3 else 1e-3)
    return VERDICTS.allgather(value)


def _end_job(reason: str) -> None:
    os.write(2, f"rank {RANK} ends the job: {reason}\n".encode())
    VERDICTS.Abort(1)


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.kwargs.get("timeout", marker.args[0] if marker.args else 0))
    option = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if option is None else option)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[DIARY].close()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After a failure messages may be under way, and MPI_Finalize could wait for ever."""
    if exitstatus:
        session.config.add_cleanup(lambda: _leave(int(exitstatus)))


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.5)  # the launcher ends all ranks when it sees the first one leave
    os._exit(status)
