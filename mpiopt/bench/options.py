"""Turns the words of a command line into checked options, without MPI: before any rank starts."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mpiopt.algorithms import algorithms
from mpiopt.bench.exact import parse_dtype, require_op
from mpiopt.bench.sizes import parse_size, sweep
from mpiopt.schedule import COLLECTIVES, REDUCING


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure and where to put it."""

    collective: str
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    dtype: str
    op: str
    trials: int | None
    warmup: int
    validate: bool
    seed: int
    budget_s: float
    json: Path | None
    csv: Path | None

    def record(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}


def parse(args: Namespace) -> Options:
    """Raise ValueError, in the user's terms, on anything that cannot work."""
    _require_collective(args.collective)
    if args.iterations is not None and args.iterations < 1:
        raise ValueError(f"-i {args.iterations}: at least 1 trial is needed")
    if args.warmup < 0 or args.seconds < 0 or args.seed < 0:
        raise ValueError("-w, --seconds and --seed cannot be negative")
    dtype = parse_dtype(args.dtype)
    if args.collective in REDUCING:
        require_op(args.op, dtype)
    for path in (args.json, args.csv):
        _require_writable(path)
    return Options(
        collective=args.collective,
        sizes=tuple(sweep(parse_size(args.begin), parse_size(args.end), args.factor)),
        algorithms=_choose_algorithms(args.collective, args.algo),
        dtype=dtype.name,
        op=args.op if args.collective in REDUCING else "sum",
        trials=args.iterations,
        warmup=args.warmup,
        validate=args.check,
        seed=args.seed,
        budget_s=args.seconds,
        json=args.json,
        csv=args.csv,
    )


def _require_collective(name: str) -> None:
    if name not in COLLECTIVES:
        raise ValueError(f"unknown collective {name!r}; one of {', '.join(COLLECTIVES)}")


def _choose_algorithms(collective: str, text: str) -> tuple[str, ...]:
    """The names in 'a,b,c', each once; 'all' stands for auto and every algorithm."""
    known = ("auto", *algorithms(collective))
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(
                f"{collective} has no algorithm {name!r}; one of {', '.join(known)}, or all"
            )
    if not names:
        raise ValueError(f"--algo is empty; one of {', '.join(known)}, or all")
    return tuple(dict.fromkeys(known if "all" in names else names))


def _require_writable(path: Path | None) -> None:
    if path is None:
        return
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"cannot write {path}: it is a folder, or its folder is missing or closed")
