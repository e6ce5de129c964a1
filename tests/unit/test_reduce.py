"""Every compiled reduction against its NumPy version: all ops, all dtypes, all ways to alias."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpiopt.kernels import reduce, reference

EVERY = [
    (op, char)
    for op in reduce.OPS
    for char in "?bhilqBHILQefdFD"
    if reduce.supported(op, np.dtype(char))
]
BITWISE = ("band", "bor", "bxor")


def compiled(op: str, out: Any, a: Any, b: Any) -> None:
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(reduce.reduction(op, out.dtype))
    function(out.ctypes.data, a.ctypes.data, b.ctypes.data, out.size)


def wanted(op: str, a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return reference.reduce(op, a, b)


def operands(char: str, n: int) -> st.SearchStrategy[Any]:
    dtype = np.dtype(char)
    if char == "e":
        return hnp.arrays(np.uint16, n).map(lambda bits: bits.view(np.float16))
    if dtype.kind in "fc":
        width = 8 * dtype.itemsize // (2 if dtype.kind == "c" else 1)
        # NumPy multiplies infinite complex numbers as it likes; those are compared separately.
        numbers = {"allow_nan": dtype.kind == "f", "allow_infinity": dtype.kind == "f"}
        kind = st.complex_numbers if dtype.kind == "c" else st.floats
        elements = kind(width=2 * width if dtype.kind == "c" else width, **numbers)
        return hnp.arrays(dtype, n, elements=elements)
    return hnp.arrays(dtype, n)


def equal(got: Any, expected: Any) -> bool:
    if got.dtype.kind != "c":
        return bool(np.array_equal(got, expected, equal_nan=got.dtype.kind == "f"))
    # A compiler may fuse the multiplications and additions of a complex product.
    finite = np.isfinite(expected) & np.isfinite(got)
    near = np.isclose(got, expected, rtol=1e-5 if got.dtype == np.complex64 else 1e-13, atol=0)
    size = np.finfo(got.dtype).max
    return bool(np.all(near | ~finite | (abs(expected) > size / 16) | (abs(expected) < 1e-30)))


@pytest.mark.parametrize(("op", "char"), EVERY)
@settings(max_examples=25)
@given(data=st.data())
def test_a_reduction_is_numpy_s_whatever_it_is_written_over(
    op: str, char: str, data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, 70))
    offset = data.draw(st.integers(0, 3))  # elements: kernels must not need whole cache lines
    a, b = data.draw(operands(char, n)), data.draw(operands(char, n))
    expected = wanted(op, a, b)
    for alias in ("none", "a", "b"):
        x, y = (np.concatenate([v[:1].repeat(offset), v])[-n:] if n else v for v in (a, b))
        x, y = x.copy(), y.copy()
        whole = np.full(n + offset + 1, 77).astype(x.dtype)
        out = {"none": whole[offset : offset + n], "a": x, "b": y}[alias]
        compiled(op, out, x, y)
        assert equal(out, expected), (alias, a, b)
        if alias == "none":
            assert np.all(whole[:offset] == whole[-1])
            assert equal(x, a)
            assert equal(y, b)


@pytest.mark.parametrize("char", "efd")
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_infinities_and_nans_go_where_ieee_says(op: str, char: str) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], dtype=char)
    a, b = (v.reshape(-1).copy() for v in np.meshgrid(special, special))
    out = np.empty_like(a)
    compiled(op, out, a, b)
    expected = wanted(op, a, b)
    assert np.array_equal(out, expected, equal_nan=True)
    if op in ("max", "min"):
        assert np.array_equal(np.isnan(out), np.isnan(a) | np.isnan(b))
    else:
        zero = (out == 0) & ~np.isnan(out)
        assert np.array_equal(np.signbit(out[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("char", "bhilqBHILQ")
def test_integers_wrap_around(char: str) -> None:
    info = np.iinfo(char)
    a = np.array([info.max, info.min, info.max, 3], dtype=char)
    b = np.array([1, info.max, info.max, 5], dtype=char)
    for op in ("sum", "prod"):
        out = np.empty_like(a)
        compiled(op, out, a, b)
        assert np.array_equal(out, wanted(op, a, b))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 63, 64, 65, 1000, 4097])
def test_lengths_around_a_vector_s_leave_the_rest_alone(n: int) -> None:
    for char in "bhfdD":
        a, b = np.arange(n + 8).astype(char), (np.arange(n + 8) * 3 % 7).astype(char)
        out = np.full(n + 8, 5, dtype=char)
        compiled("sum", out[4 : 4 + n], a[4 : 4 + n], b[4 : 4 + n])
        assert np.array_equal(out[4 : 4 + n], a[4 : 4 + n] + b[4 : 4 + n])
        assert np.all(out[:4] == 5)
        assert np.all(out[4 + n :] == 5)


def test_halves_are_rounded_once_as_numpy_rounds_them() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for shift in (1, 257, 4099, 30011):
        other = np.roll(every, shift)
        for op in ("sum", "prod"):
            out = np.empty_like(every)
            compiled(op, out, every, other)
            assert np.array_equal(out, wanted(op, every, other), equal_nan=True)


def test_what_has_no_reduction_is_refused_with_the_known_ops() -> None:
    for op, char in (("sum", "g"), ("max", "D"), ("band", "d"), ("land", "e"), ("mean", "d")):
        assert not reduce.supported(op, np.dtype(char))
        with pytest.raises(ValueError, match=r"no reduction .* ops: sum, prod"):
            reduce.reduction(op, np.dtype(char))
    swapped = np.dtype(np.float64).newbyteorder()
    assert not reduce.supported("sum", swapped)


def test_the_names_of_one_machine_type_share_a_kernel() -> None:
    assert reduce.reduction("sum", np.dtype("l")) == reduce.reduction("sum", np.dtype("q"))
    assert reduce.reduction("sum", np.dtype("i")) != reduce.reduction("sum", np.dtype("I"))
