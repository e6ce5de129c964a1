"""Turns Python functions into compiled ones whose machine code is kept on disk between runs.

Numba keys its cache on the one file that holds a function: after an edit of a callee elsewhere it
would go on serving the stale caller. Here the cache directory is named by a digest of every
source, so an edit anywhere starts a fresh one, and site-packages stays clean.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba


def _sources() -> Iterator[Path]:
    here = Path(__file__).parent
    yield from here.glob("*.py")
    # The package above, if there is one: kernels also run on their own in a checkout.
    yield from (path for path in here.parent.rglob("*.py") if here not in path.parents)


def digest(sources: Iterator[Path]) -> str:
    """Names the state of all sources: constants of any of them may be compiled in anywhere."""
    state = hashlib.sha256(numba.__version__.encode())
    for path in sorted(sources):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


@cache
def cache_dir() -> Path:
    """Where machine code is kept: MPIOPT_CACHE_DIR, else the user's cache, else a private one."""
    chosen = os.environ.get("MPIOPT_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = (Path(chosen) if chosen else home / "mpiopt") / digest(_sources())
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass  # no home, or one that cannot be written: batch jobs have them
    return Path(tempfile.mkdtemp(prefix="mpiopt-"))


@contextmanager
def _our_cache() -> Iterator[None]:
    # Numba reads its configured directory once, when a function is decorated.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_dir())
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


class Compiled:
    """A function for one signature: compiled, or loaded from the cache, when first asked for."""

    def __init__(self, signature: Any, function: Callable[..., Any], nogil: bool) -> None:
        self._signature = signature
        with _our_cache():
            self._dispatcher = numba.njit(nogil=nogil, error_model="numpy", cache=True)(function)

    @cached_property
    def entry_point(self) -> Callable[..., int]:
        """The machine code as a Python callable, without Numba's look at the argument types."""
        self._dispatcher.compile(self._signature)
        (compiled,) = self._dispatcher.overloads.values()
        callable_: Callable[..., int] = compiled.entry_point
        return callable_


def jit(signature: Any, nogil: bool = True) -> Callable[[Callable[..., Any]], Compiled]:
    """Decorate a function to run compiled, and without the interpreter lock unless told to keep it.

    To give the lock away and take it back costs a tenth of a microsecond.
    """
    return lambda function: Compiled(signature, function, nogil)


def cfunc(signature: Any, function: Callable[..., Any]) -> Any:
    """Compile to a C function, whose `address` other compiled code can call."""
    with _our_cache():
        return numba.cfunc(signature, cache=True, error_model="numpy")(function)
