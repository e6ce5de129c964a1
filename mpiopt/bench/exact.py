"""Turns (op, dtype, ranks) into inputs whose combination is exact: results compare equal."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# The kinds of dtype on which MPI defines each op, by NumPy's letters.
OP_KINDS = {
    "sum": "iufc",
    "prod": "iufc",
    "max": "iuf",
    "min": "iuf",
    "land": "iub",
    "lor": "iub",
    "lxor": "iub",
    "band": "iu",
    "bor": "iu",
    "bxor": "iu",
}


def parse_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of that name, if MPI has it too."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "iufcb" or not dtype.isnative:
        raise ValueError(f"-d {name}: not a number type; for example float32, int64, complex128")
    return dtype


def require_op(op: str, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if MPI does not define `op` on `dtype`."""
    if op not in OP_KINDS:
        raise ValueError(f"-o {op}: unknown op; one of {', '.join(OP_KINDS)}")
    if dtype.kind not in OP_KINDS[op]:
        allowed = [name for name, kinds in OP_KINDS.items() if dtype.kind in kinds]
        raise ValueError(f"-o {op} is not defined on {dtype}; one of {', '.join(allowed)}")


def exact_values(
    rng: np.random.Generator, op: str, dtype: np.dtype[Any], ranks: int, n: int
) -> Array:
    """n random values, of which `ranks` combine by `op` with no rounding, in any order.

    Integers that overflow wrap around alike in every order, so they are exact too.
    """
    signed = dtype.kind in "ifc"
    if op == "prod":
        factors = np.array((-1, 1) if signed else (1, 3))
        return factors[rng.integers(0, 2, n)].astype(dtype)
    if op.startswith("l") or dtype.kind == "b":
        return rng.integers(0, 2, n).astype(dtype)
    # float16 holds integers up to 2048, int8 up to 127.
    most = max(1, min(127, 2048 // ranks)) if op == "sum" else 127
    return rng.integers(-most if signed else 0, most, n, endpoint=True).astype(dtype)
