"""Runs tests/mpi under mpiexec, once for each rank count, and shows the output of what failed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from mpiopt import launch

HERE = Path(__file__).parent
RANK_COUNTS = (1, 2, 3, 4, 5, 8)
TEST_TIMEOUT_S = 120
SUITE_TIMEOUT_S = 420

ONE_RANK_FAILS = """
from mpi4py import MPI

def test_fine(agree):
    agree(True)

def test_odd(agree):
    assert MPI.COMM_WORLD.rank != 1, "only here"

def test_disagreement(agree):
    agree(MPI.COMM_WORLD.rank != 2, "two says no")
"""

ONE_RANK_HANGS = """
from mpi4py import MPI

def test_waits_for_a_message_that_never_comes():
    if MPI.COMM_WORLD.rank == 1:
        MPI.COMM_WORLD.recv(source=0)
"""


def run_pytest(
    ranks: int, tests: Path, scratch: Path, *options: str, timeout_s: float = SUITE_TIMEOUT_S
) -> tuple[int, str]:
    """Exit code of pytest on `ranks` ranks, and what they had to say."""
    config = HERE.parent / "pyproject.toml"
    argv = [sys.executable, "-m", "pytest", "--with-mpi", f"--diaries={scratch}"]
    argv += ["--timeout-method=thread", "--color=no", "-p", "no:cacheprovider"]
    argv += ["-c", str(config), f"--rootdir={config.parent}", *options, str(tests)]
    # The order of sets, and so perhaps of tests, must be the same on all ranks.
    env = {**os.environ, "PYTHONHASHSEED": "0", "COLUMNS": "100"}
    log = scratch / "output.txt"
    with log.open("w") as output:
        code = launch.run(ranks, argv, env=env, timeout_s=timeout_s, output=output)
    text = log.read_text(errors="replace")
    for diary in sorted(scratch.glob("rank-*.log")):
        if said := diary.read_text(errors="replace"):
            text += f"\n---------- {diary.stem}\n{said}"
    return code, text


@pytest.mark.timeout(SUITE_TIMEOUT_S + 60)
@pytest.mark.parametrize("ranks", RANK_COUNTS)
def test_mpi_suite_passes(ranks: int, tmp_path: Path) -> None:
    options = ("-x", f"--timeout={TEST_TIMEOUT_S}")
    code, text = run_pytest(ranks, HERE / "mpi", tmp_path, *options)
    if code:
        pytest.fail(f"tests/mpi on {ranks} ranks: exit code {code}\n{text}", pytrace=False)


def write_suite(folder: Path, source: str) -> Path:
    suite = folder / "suite"
    suite.mkdir()
    shutil.copy(HERE / "mpi" / "conftest.py", suite)
    (suite / "test_it.py").write_text(source)
    return suite


def test_what_fails_on_one_rank_fails_on_all_and_is_named(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, ONE_RANK_FAILS)
    code, text = run_pytest(3, suite, tmp_path, "--timeout=30", timeout_s=60)
    assert code not in (0, launch.TIMED_OUT), text
    assert "2 failed, 1 passed" in text
    assert "rank 1: failed" in text
    assert "only here" in text
    assert "rank 2: two says no" in text


def test_a_hang_is_a_failure_that_shows_the_stacks(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, ONE_RANK_HANGS)
    code, text = run_pytest(2, suite, tmp_path, "--timeout=6", timeout_s=60)
    assert code not in (0, launch.TIMED_OUT), text
    hung = text.partition("---------- rank-1")[2]
    assert "test_waits_for_a_message_that_never_comes" in hung, text
