"""The cache of machine code: named by the sources, kept where it can be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba import types

import mpiopt
from mpiopt.kernels import jit

PACKAGE = Path(mpiopt.__file__).parent
# Whatever compiled code is made of: functions, intrinsics, declared C functions, constants.
COMPILED = [
    "executor.py",
    "rings.py",
    "wire.py",
    "schedule.py",
    "kernels/jit.py",
    "kernels/reduce.py",
    "kernels/address.py",
]


def copy_of_the_package(folder: Path) -> list[Path]:
    copies = []
    for name in COMPILED:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((PACKAGE / name).read_bytes())
        copies.append(copy)
    return copies


@pytest.mark.parametrize("name", COMPILED)
def test_an_edit_of_anything_that_is_compiled_changes_the_digest(name: str, tmp_path: Path) -> None:
    sources = copy_of_the_package(tmp_path)
    before = jit.digest(iter(sources))
    assert jit.digest(iter(reversed(sources))) == before
    edited = tmp_path / name
    edited.write_bytes(edited.read_bytes() + b"\n# edited\n")
    assert jit.digest(iter(sources)) != before


def test_the_digest_sees_every_source_that_compiles() -> None:
    seen = {path.resolve() for path in jit._sources()}
    assert {(PACKAGE / name).resolve() for name in COMPILED} <= seen


def test_a_home_that_cannot_be_written_gives_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "not-a-folder"
    blocked.write_text("")
    monkeypatch.delenv("MPIOPT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    folder = jit.cache_dir.__wrapped__()
    assert folder.is_dir()
    assert blocked not in folder.parents
    assert folder.stat().st_mode & 0o077 == 0
    folder.rmdir()


@pytest.mark.parametrize("variable", ["MPIOPT_CACHE_DIR", "XDG_CACHE_HOME"])
def test_the_cache_is_where_the_user_says(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MPIOPT_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    folder = jit.cache_dir.__wrapped__()
    assert tmp_path / "mine" in folder.parents
    assert folder.name == jit.digest(jit._sources())


def test_numba_s_own_setting_is_left_as_it_was() -> None:
    import numba

    before = numba.config.CACHE_DIR
    compiled = jit.jit(types.int64(types.int64))(_twice)
    assert numba.config.CACHE_DIR == before
    assert compiled.entry_point(21) == 42


def _twice(n: int) -> int:
    return 2 * n
