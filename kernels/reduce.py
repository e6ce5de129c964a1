"""Turns two buffers into their element-wise reduction: out = a op b, for each op and dtype.

Every kernel is a C function of four 64-bit integers: the addresses out, a, b, and the number of
elements. `out` may be `a` or `b`, and may not overlap them otherwise. Kernels are compiled (or
loaded) when first asked for. Which operand comes first matters to the bits of a result only for
NaN payloads and signed zeros; callers that want the same bits everywhere keep one order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from .address import as_pointer
from .jit import cfunc

_INTEGERS = "bhilqBHILQ"
_ARITHMETIC = _INTEGERS + "efdFD"
_ORDERED = _INTEGERS + "efd"
_LOGICAL = _INTEGERS + "?"
_DTYPES = {
    "sum": _ARITHMETIC,
    "prod": _ARITHMETIC,
    "max": _ORDERED,
    "min": _ORDERED,
    "land": _LOGICAL,
    "lor": _LOGICAL,
    "lxor": _LOGICAL,
    "band": _LOGICAL,
    "bor": _LOGICAL,
    "bxor": _LOGICAL,
}
OPS = tuple(_DTYPES)

# Written for the vectoriser: comparisons and selects only. Like NumPy's, max and min keep a NaN.
_COMBINE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda op, x, y: x + y,
    "prod": lambda op, x, y: x * y,
    "max": lambda op, x, y: x if (x > y or x != x) else y,
    "min": lambda op, x, y: x if (x < y or x != x) else y,
    "land": lambda op, x, y: (x != 0) & (y != 0),
    "lor": lambda op, x, y: (x != 0) | (y != 0),
    "lxor": lambda op, x, y: (x != 0) ^ (y != 0),
    "band": lambda op, x, y: x & y,
    "bor": lambda op, x, y: x | y,
    "bxor": lambda op, x, y: x ^ y,
}


@intrinsic
def _half_to_float(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _float_to_half(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


def _combine(op: str, x: Any, y: Any) -> Any:
    """x op y inside a kernel; which op is settled when the kernel is compiled."""


@overload(_combine, prefer_literal=True, strict=False)
def _compile_combine(op: Any, x: Any, y: Any) -> Any:
    return _COMBINE[op.literal_value]


def _widen(form: str, x: Any) -> Any:
    """What is computed with: the value itself, or a float for a half's bit pattern."""


@overload(_widen, prefer_literal=True, strict=False)
def _compile_widen(form: Any, x: Any) -> Any:
    half = form.literal_value == "half"
    return (lambda form, x: _half_to_float(x)) if half else (lambda form, x: x)


def _narrow(form: str, x: Any) -> Any:
    """What is stored: the value itself, or the bit pattern of the nearest half."""


@overload(_narrow, prefer_literal=True, strict=False)
def _compile_narrow(form: Any, x: Any) -> Any:
    half = form.literal_value == "half"
    return (lambda form, x: _float_to_half(x)) if half else (lambda form, x: x)


def _kernel(op: str, dtype: Any, form: str) -> Callable[[int, int, int, int], None]:
    def kernel(out: int, a: int, b: int, n: int) -> None:
        z, x, y = as_pointer(out, dtype), as_pointer(a, dtype), as_pointer(b, dtype)
        # Three loops, because the vectoriser gives up when it cannot tell `out` from an operand.
        if out == a:
            for i in range(n):
                z[i] = _narrow(form, _combine(op, _widen(form, z[i]), _widen(form, y[i])))
        elif out == b:
            for i in range(n):
                z[i] = _narrow(form, _combine(op, _widen(form, x[i]), _widen(form, z[i])))
        else:
            for i in range(n):
                z[i] = _narrow(form, _combine(op, _widen(form, x[i]), _widen(form, y[i])))

    return kernel


def supported(op: str, dtype: np.dtype[Any]) -> bool:
    """Whether there is a kernel: native byte order, and an op that MPI defines for the dtype."""
    return op in _DTYPES and dtype.isnative and dtype.char in _DTYPES[op]


@cache
def _compiled(op: str, item: str, form: str) -> Any:
    signature = types.void(types.int64, types.int64, types.int64, types.int64)
    return cfunc(signature, _kernel(op, np.dtype(item), form))


def reduction(op: str, dtype: np.dtype[Any]) -> int:
    """The address of the C function (out, a, b, n) that sets out = a op b."""
    if not supported(op, dtype):
        raise ValueError(f"no reduction {op!r} for dtype {dtype}; ops: {', '.join(OPS)}")
    form = "half" if dtype.char == "e" else "plain"
    # By kind and size, so that NumPy's several names for one machine type share a kernel.
    kind = {"e": "u", "?": "u"}.get(dtype.char, dtype.kind)
    address: int = _compiled(op, f"{kind}{dtype.itemsize}", form).address
    return address
