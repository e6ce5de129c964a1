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


@intrinsic
def load_acquire(typing_context: Any, address: Any) -> Any:
    """The 64-bit integer at an address; nothing after this is done before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.int64(types.int64), generate


@intrinsic
def store_release(typing_context: Any, address: Any, value: Any) -> Any:
    """Set the 64-bit integer at an address; everything before this is done before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[1], pointer, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
