"""Laws of the launcher: what counts as launched, what is started, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpiopt import launch

PROJECT = Path(__file__).parents[2]
STEP = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    ("env", "promised"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "0"}, 3),
        ({"PMI_SIZE": "5", "PMI_RANK": "0"}, 5),
        ({"MV2_COMM_WORLD_SIZE": "2"}, 2),
        ({"PMIX_RANK": "1"}, 0),
        (STEP, None),  # a batch script
        ({**STEP, "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({**STEP, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({**STEP, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}, 4),
        ({**STEP, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "0"}, 4),
        ({**STEP, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "1"}, None),
        # mpiexec inside a job starts its daemons with srun: the daemons are not the ranks
        ({**STEP, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "8"}, 8),
    ],
)
def test_launched_is_what_the_launcher_promised(env: dict[str, str], promised: int | None) -> None:
    assert launch.launched(env) == promised


@pytest.mark.parametrize("env", [{}, {"PMI_SIZE": "4"}, {"PMIX_RANK": "0"}])
def test_a_kept_promise_is_accepted(env: dict[str, str]) -> None:
    launch.verify(4, "MPICH", env)


def test_a_broken_promise_names_both_sizes_and_the_remedy() -> None:
    env = {**STEP, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    with pytest.raises(launch.LaunchError, match=r"srun promised 4 .* size 1.*--mpi=pmix"):
        launch.verify(1, "Open MPI v5", env)


def fake_launcher(folder: Path, says: str) -> str:
    path = folder / "mpiexec"
    path.write_text(f'#!/bin/sh\necho "{says}"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def lone_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python with no mpiexec beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def test_the_environments_own_mpiexec_comes_before_the_one_on_path(
    lone_python: Path, tmp_path: Path
) -> None:
    other = fake_launcher(tmp_path, "other")
    assert launch.mpiexec({"PATH": str(tmp_path)}) == other
    own = fake_launcher(lone_python, "own")
    assert launch.mpiexec({"PATH": str(tmp_path)}) == own


@pytest.mark.usefixtures("lone_python")
def test_a_missing_mpiexec_is_an_error_with_its_remedy() -> None:
    with pytest.raises(launch.LaunchError, match=r"pip install 'mpiopt\[mpi\]'"):
        launch.mpiexec({"PATH": ""})


@pytest.mark.parametrize(
    ("says", "flavour"),
    [
        ("mpiexec (Open MPI) 5.0.11", "openmpi"),
        ("mpirun (Open MPI) 4.1.4", "openmpi"),
        ("HYDRA build details: Version: 5.0.2", "mpich"),
        ("Intel(R) MPI Library for Linux* OS", "mpich"),
        ("something else", "unknown"),
    ],
)
def test_a_launcher_is_known_by_what_it_says(says: str, flavour: str, tmp_path: Path) -> None:
    assert launch.flavour(fake_launcher(tmp_path, says)) == flavour


@pytest.fixture
def openmpi(lone_python: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine with 4 cores, 8 hardware threads, and Open MPI."""
    monkeypatch.setattr(launch, "cores", lambda: 4)
    monkeypatch.setattr(launch, "cpus", lambda: 8)
    return fake_launcher(lone_python, "mpiexec (Open MPI) 5.0.11")


@pytest.mark.parametrize(("ranks", "mapped", "yields"), [(4, 0, 0), (5, 1, 0), (9, 1, 1)])
def test_openmpi_oversubscribes_only_beyond_the_cores(
    openmpi: str, ranks: int, mapped: int, yields: int
) -> None:
    argv, _ = launch.command(ranks, ["a.out"], {})
    assert argv[0] == openmpi
    assert argv[-3:] == ["-n", str(ranks), "a.out"]
    assert argv.count(":OVERSUBSCRIBE") == mapped
    assert argv.count("none") == mapped
    assert argv.count("mpi_yield_when_idle") == yields


@pytest.mark.usefixtures("openmpi")
def test_inside_an_allocation_the_resource_manager_places_ranks() -> None:
    argv, _ = launch.command(64, ["a.out"], {"SLURM_JOB_ID": "7"})
    assert ":OVERSUBSCRIBE" not in argv


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
@pytest.mark.usefixtures("openmpi")
def test_only_root_is_allowed_to_run_as_root(
    user: int, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    _, env = launch.command(1, ["a.out"], {})
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in env) is allowed
    assert ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in env) is allowed


def test_mpich_needs_no_options(lone_python: Path) -> None:
    launcher = fake_launcher(lone_python, "HYDRA build details:")
    assert launch.command(64, ["a.out"], {}) == ([launcher, "-n", "64", "a.out"], {})


def test_no_ranks_is_an_error() -> None:
    with pytest.raises(launch.LaunchError, match="at least 1"):
        launch.command(0, ["a.out"])


def test_run_starts_every_rank_and_returns_their_exit_code(tmp_path: Path) -> None:
    code = "import os, sys; open(sys.argv[1] + str(os.getpid()), 'w'); sys.exit(3)"
    with (tmp_path / "output").open("w") as output:
        argv = [sys.executable, "-c", code, f"{tmp_path}/rank-"]
        assert launch.run(2, argv, output=output) == 3
    assert len(list(tmp_path.glob("rank-*"))) >= 1  # the first to fail may end the other


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sleepers(folder: Path, count: int, limit_s: float = 20.0) -> list[int]:
    """Process ids that `count` ranks of SLEEP have left in `folder`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        pids = [int(path.name.removeprefix("rank-")) for path in folder.glob("rank-*")]
        if len(pids) == count:
            return pids
        time.sleep(0.05)
    raise AssertionError(f"{count} ranks did not start within {limit_s:g} s")


SLEEP = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + str(os.getpid()), "w")
time.sleep(120)
"""


def test_a_timeout_ends_all_ranks(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", SLEEP, f"{tmp_path}/rank-"]
    with (tmp_path / "output").open("w") as output:
        assert launch.run(2, argv, timeout_s=4, output=output) == launch.TIMED_OUT
    assert not any(alive(pid) for pid in sleepers(tmp_path, 2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks_and_then_this_process(
    number: signal.Signals, tmp_path: Path
) -> None:
    code = "import sys; from mpiopt import launch; sys.exit(launch.run(2, sys.argv[1:]))"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, sys.executable, "-c", SLEEP, f"{tmp_path}/rank-"],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pids = sleepers(tmp_path, 2)
    parent.send_signal(number)
    assert parent.wait(30) == -number
    assert not any(alive(pid) for pid in pids)


def test_launching_does_not_import_mpi() -> None:
    code = "import sys, mpiopt.launch; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 0
