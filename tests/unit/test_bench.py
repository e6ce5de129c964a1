"""Laws of the benchmark's rows, files, inputs and words; no MPI call is made here."""

from __future__ import annotations

import csv
import io
import json
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mpiopt.bench import exact, show
from mpiopt.bench import rows as records
from mpiopt.bench.rows import Row

KEYS = (
    "collective", "algo", "codec", "dtype", "op", "ranks", "size_bytes", "count",
    "median_us", "p10_us", "p90_us", "min_us", "max_us", "samples", "algbw_GBps", "busbw_GBps",
    "wire_bytes", "rounds", "vs_mpi", "max_error", "wrong",
)  # fmt: skip
NUMPY_OPS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
DTYPES = (
    "int8", "uint8", "int16", "uint32", "int64",
    "float16", "float32", "float64", "complex64", "bool",
)  # fmt: skip


def make_row(algo: str = "auto", size_bytes: int = 8, vs_mpi: float = 2.0, **extra: Any) -> Row:
    values: dict[str, Any] = dict.fromkeys(records.KEYS, 1)
    values |= {"collective": "allreduce", "algo": algo, "codec": None, "dtype": "float32"}
    values |= {"op": "sum", "ranks": 2, "size_bytes": size_bytes, "vs_mpi": vs_mpi, "ran": algo}
    return Row(**values | extra)


def test_a_row_has_the_documented_keys_in_their_order_and_what_ran() -> None:
    assert (*KEYS, "ran") == records.KEYS


def test_json_is_one_object_with_version_args_machine_and_rows() -> None:
    text = records.to_json([make_row()], {"seed": 1}, {"mpi": "x"})
    record = json.loads(text)
    assert list(record) == ["version", "args", "machine", "rows"]
    assert list(record["rows"][0]) == list(records.KEYS)


def test_csv_has_a_header_and_a_line_for_each_row() -> None:
    read = list(csv.DictReader(io.StringIO(records.to_csv([make_row(), make_row("ring")]))))
    assert [line["algo"] for line in read] == ["auto", "ring"]
    assert list(read[0]) == list(records.KEYS)


def test_the_machine_is_described_by_an_allow_list_only() -> None:
    env = {"UCX_TLS": "tcp", "SECRET": "s", "HOSTNAME": "h"}
    machine = records.machine("MPI 1", 1, env)
    assert machine["variables"] == {"UCX_TLS": "tcp"}
    assert {"mpi", "nodes", "cpu", "cores", "python", "numpy", "numba", "mpi4py"} <= set(machine)


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        records.write_whole(path, None)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    records.write_whole(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("op", exact.OP_KINDS)
@pytest.mark.parametrize("name", DTYPES)
def test_inputs_combine_exactly_in_any_order(op: str, name: str) -> None:
    dtype, ranks = np.dtype(name), 17
    if dtype.kind not in exact.OP_KINDS[op]:
        with pytest.raises(ValueError, match="not defined"):
            exact.require_op(op, dtype)
        return
    rng = np.random.default_rng(1)
    inputs = [exact.exact_values(rng, op, dtype, ranks, 1000) for _ in range(ranks)]
    assert {values.dtype for values in inputs} == {dtype}
    combine = NUMPY_OPS[op]
    there, back = reduce(combine, inputs), reduce(combine, inputs[::-1])
    assert np.array_equal(there, back)
    assert np.isfinite(there).all()
    if dtype.kind == "f":
        wide = reduce(combine, [values.astype(np.float64) for values in inputs])
        assert np.array_equal(there, wide)


@pytest.mark.parametrize("name", ["float99", "object", "U4", "datetime64[s]", ">f4"])
def test_a_type_that_mpi_lacks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="float32"):
        exact.parse_dtype(name)


def text_of(table: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_the_table_shows_what_ran_beside_mpi() -> None:
    mpi = make_row("mpi", vs_mpi=1.0, median_us=4.5)
    text = text_of(show.table([mpi, make_row("auto", ran="ring", median_us=2.25, wrong=3)]))
    line = next(line for line in text.splitlines() if "ring (auto)" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["8", "1", "ring (auto)", "4.50", "2.25", "2.00", "1.00", "1.00", "3"]


def test_the_summary_names_losses_as_plainly_as_wins() -> None:
    rows = [make_row("mpi", vs_mpi=1.0)]
    rows += [
        make_row(size_bytes=size, vs_mpi=r) for size, r in ((8, 0.5), (1024, 1.0), (2048, 2.0))
    ]
    assert show.summary(rows) == [
        "auto: geometric mean 1.00 x MPI's own; wins at 1 of 3 sizes (best 2.00 at 2K), "
        "even at 1 (within 2%), loses at 1 (8; worst 0.50 at 8)"
    ]


@pytest.mark.parametrize("text", ["out,err,120", "err,80", "100"])
def test_a_terminal_is_described_in_words_that_parse_back(text: str) -> None:
    assert str(show.Terminal.parse(text)) == text


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), record=True)
    with show.progress(console, "bench", 2) as advance:
        advance("8")
        advance("64K")
    assert console.export_text().splitlines() == ["bench: 1/2 8", "bench: 2/2 64K"]
