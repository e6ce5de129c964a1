"""Turns integers into memory and calls, for compiled code that is handed addresses."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def as_pointer(typing_context: Any, address: Any, dtype: Any) -> Any:
    """The memory at an address as an indexable pointer to items of `dtype`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(dtype.dtype)(address, dtype), generate


@intrinsic
def call_reduction(typing_context: Any, function: Any, out: Any, a: Any, b: Any, n: Any) -> Any:
    """Call the C function `void f(out, a, b, n)` at an address, all four 64-bit integers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [i64] * 4)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, types.int64), generate
