"""Decides what this process collects: tests/mpi only as a rank, the driver only as its parent."""

from __future__ import annotations

import pytest
from hypothesis import settings

from mpiopt.launch import launched

# Ranks must draw the same examples, and a fresh HOME or a read-only checkout must do.
settings.register_profile("mpiopt", derandomize=True, database=None, deadline=None)
settings.load_profile("mpiopt")

collect_ignore = ["mpi"] if launched() is None else ["test_mpi.py"]


def pytest_report_header(config: pytest.Config) -> str:
    del config
    if launched() is None:
        return "mpiopt: tests/mpi run under mpiexec, started by tests/test_mpi.py"
    return f"mpiopt: one of {launched()} ranks"
