"""The programs in jobs/ do what they say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

JOBS = Path(__file__).parents[2] / "jobs"


def test_the_allreduce_job_checks_its_result_and_shows_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], agree: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["allreduce.py", "--count", "1000", "--algorithm", "ring"])
    runpy.run_path(str(JOBS / "allreduce.py"), run_name="__main__")
    said = capsys.readouterr().out
    size = MPI.COMM_WORLD.size
    expected = [f"mean {(size - 1) / 2} on {size} ranks", "algorithm ring, calls 1"]
    agree(MPI.COMM_WORLD.rank > 0 or all(text in said for text in expected), said)
