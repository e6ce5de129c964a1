"""Turns measurements into records and files: rows, the machine they come from, JSON and CSV.

The machine is described by an allow-list: no host names, no paths, no other variables.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mpiopt import __version__, launch

VARIABLES = (
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMPI_MCA_btl",
    "OMPI_MCA_coll",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMPI_MCA_pml",
    "PRTE_MCA_rmaps_default_mapping_policy",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "UCX_NET_DEVICES",
    "UCX_RNDV_THRESH",
    "UCX_TLS",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one size; None where a number was not measured or is not known.

    `algo` is what was asked for, `ran` what really ran; `wire_bytes` and `rounds` are those of
    the busiest rank in one call.
    """

    collective: str
    algo: str
    codec: str | None
    dtype: str
    op: str | None
    ranks: int
    size_bytes: int
    count: int
    median_us: float
    p10_us: float
    p90_us: float
    min_us: float
    max_us: float
    samples: int
    algbw_GBps: float  # noqa: N815  (the unit's own spelling)
    busbw_GBps: float  # noqa: N815
    wire_bytes: int | None
    rounds: int | None
    vs_mpi: float
    max_error: float | None
    wrong: int | None
    ran: str


KEYS = tuple(field.name for field in fields(Row))


def machine(mpi: str, nodes: int, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a reader needs to judge the figures. `mpi` is the library's name and version."""
    env = os.environ if env is None else env
    packages = ("mpi4py", "numpy", "numba")
    return {
        "mpi": mpi,
        "nodes": nodes,
        "cpu": _cpu_model(),
        # The whole node's: a rank may be bound to one core of it.
        "cores": launch.cores(range(os.cpu_count() or 1)),
        "cpus": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "variables": {name: env[name] for name in VARIABLES if name in env},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or "unknown")


def to_json(rows: Sequence[Row], args: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    record = {
        "version": __version__,
        "args": dict(args),
        "machine": dict(machine),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(record, indent=1) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, KEYS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp's files are private
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
