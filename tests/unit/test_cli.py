"""Laws of the command line: quick, readable, and honest exit codes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mpiopt
from mpiopt import check, cli, launch
from mpiopt.schedule import COLLECTIVES

PROJECT = Path(__file__).parents[2]
START_RANKS = launch.run


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(launch, "run", refuse)


def run_mpiopt(*argv: str, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mpiopt", *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=100,
        check=False,
    )


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, mpiopt.cli as c; c.build_parser().format_help();"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'numba', 'mpi4py.MPI', 'rich')))"
    )
    start = time.perf_counter()
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 0
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("command", ["bench", "check", "draw"])
def test_every_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"mpiopt {command}" in capsys.readouterr().out.partition("examples:")[2]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("bench allredude", "one of allreduce"),
        ("bench --algo rong", "one of auto"),
        ("bench --algo ,", "empty"),
        ("bench -b 4q", "64M"),
        ("bench -b 64 -e 8", "begin <= end"),
        ("bench -f 1", "2 or more"),
        ("bench -i 0", "at least 1 trial"),
        ("bench -w -1", "negative"),
        ("bench -d float99", "for example float32"),
        ("bench -o band", "one of sum"),
        ("bench -o med", "unknown op"),
        ("bench -J no/such/folder/x.json", "cannot write"),
        ("check --max-size 0", "at least 1"),
        ("draw rong", "one of "),
        ("draw ring --collective sum", "one of allreduce"),
        ("draw ring -n 0", "at least 1"),
        ("draw ring -n 2 --root 5", "0..1"),
        ("draw ring -o no/such/folder/x.svg", "cannot write"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_do(
    argv: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv.split()) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_no_ranks_is_a_mistake_too() -> None:
    done = run_mpiopt("bench", "-n", "0")
    assert (done.returncode, "at least 1" in done.stderr) == (2, True)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"mpiopt {mpiopt.__version__}\n"


def test_check_proves_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--max-size", "3"]) == 0
    out = capsys.readouterr().out
    assert all(collective in out for collective in COLLECTIVES)


def test_check_fails_on_a_broken_schedule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise check.ScheduleError.__new__(check.ScheduleError, "rank 3, round 1")

    monkeypatch.setattr(check, "prove_all", broken)
    assert cli.main(["check"]) == 1
    assert "rank 3, round 1" in capsys.readouterr().err


def test_draw_prints_a_table_or_writes_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["draw", "ring", "-n", "3", "--text"]) == 0
    assert "round" in capsys.readouterr().out
    picture = tmp_path / "ring.svg"
    assert cli.main(["draw", "ring", "-n", "3", "-o", str(picture)]) == 0
    assert picture.read_text().lstrip().startswith("<")


@pytest.mark.parametrize("collective", ["allreduce", "gather", "barrier"])
def test_bench_measures_checks_and_writes_rows(collective: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    sweep = f"-n 2 -b 8 -e 1K -f 16 -i 3 -w 1 -c --algo auto,all -J {out} --csv {out}.csv"
    done = run_mpiopt("bench", collective, *sweep.split())
    assert done.returncode == 0, done.stderr
    assert "geometric mean" in done.stdout
    record = json.loads(out.read_text())
    rows = record["rows"]
    assert {row["vs_mpi"] for row in rows if row["algo"] == "mpi"} == {1.0}
    assert {row["wrong"] for row in rows if row["algo"] != "mpi"} == {0}
    assert {row["samples"] for row in rows} == {3}
    assert {row["ran"] == row["algo"] for row in rows if row["algo"] != "auto"} == {True}
    assert max(row["size_bytes"] for row in rows) == (0 if collective == "barrier" else 1024)
    with (tmp_path / "rows.json.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)


WRONG_ON_RANK_1 = """
import sys

sys.path.insert(0, sys.argv[1])
import mpiopt
from mpiopt.cli import main

right = mpiopt.Communicator


class Wrong(right):
    def Allreduce(self, sendbuf, recvbuf, *args, **extra):
        right.Allreduce(self, sendbuf, recvbuf, *args, **extra)
        if self.rank == 1:
            recvbuf[0] += 3


mpiopt.Communicator = Wrong
sys.exit(main(["bench", "-b", "64", "-e", "64", "-i", "2", "-c", "-J", sys.argv[2]]))
"""


def test_a_wrong_result_on_one_rank_is_counted_and_exits_1(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    argv = [sys.executable, "-c", WRONG_ON_RANK_1, str(PROJECT), str(out)]
    with (tmp_path / "output").open("w") as output:
        code = START_RANKS(2, argv, timeout_s=60, output=output)
    assert code == 1, (tmp_path / "output").read_text()
    _, ours = json.loads(out.read_text())["rows"]
    assert (ours["wrong"], ours["max_error"]) == (1, 3.0)


def test_a_launcher_of_another_mpi_is_named() -> None:
    env = {**os.environ, "PMI_SIZE": "4"}
    argv = [sys.executable, "-m", "mpiopt", "bench", "-e", "8"]
    done = subprocess.run(
        argv, capture_output=True, text=True, cwd=PROJECT, timeout=60, check=False, env=env
    )
    assert done.returncode == 2, done.stderr
    assert "promised 4 tasks, but MPI's world has size 1" in done.stderr
