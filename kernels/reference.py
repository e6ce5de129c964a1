"""The plain NumPy version of every kernel: what the compiled ones are tested against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

REDUCTIONS: dict[str, Any] = {
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


def reduce(op: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """a op b, element by element, in the dtype of a."""
    result: NDArray[Any] = REDUCTIONS[op](a, b).astype(a.dtype)
    return result
