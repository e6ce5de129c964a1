"""Buffer specifications, as mpi4py takes them: what is understood, left to MPI, or refused."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt.buffers import simple, vector
from mpiopt.errors import BadBufferError

X = np.arange(12, dtype=np.float64)


@pytest.mark.parametrize(
    ("spec", "offset", "count"),
    [
        (X, 0, 12),
        (X.reshape(3, 4), 0, 12),
        (X.reshape(3, 4).T, 0, 12),
        (X[2:7], 0, 5),
        ([X, MPI.DOUBLE], 0, 12),
        ((X, MPI.DOUBLE), 0, 12),
        ([X, "d"], 0, 12),
        ([X, 5], 0, 5),
        ([X, 5, MPI.DOUBLE], 0, 5),
        ([X, (5, 3), MPI.DOUBLE], 3, 5),
        ([X, 5, 3, MPI.DOUBLE], 3, 5),
        ([X, None, MPI.DOUBLE], 0, 12),
        ([X, (None, 2), MPI.DOUBLE], 2, 10),
        ([X, np.int32(4), MPI.DOUBLE], 0, 4),
        ([X, 0, MPI.DOUBLE], 0, 0),
    ],
)
def test_one_message_in_all_its_spellings(spec: Any, offset: int, count: int) -> None:
    data = spec[0] if isinstance(spec, (list, tuple)) else spec
    made = simple(spec, 0, writable=True)
    assert made is not None
    assert made.dtype == np.float64
    assert made.count == count
    assert made.address == data.ctypes.data + 8 * offset


@pytest.mark.parametrize(
    ("data", "dtype", "count"),
    [
        (bytearray(10), np.uint8, 10),
        (array.array("d", range(6)), np.float64, 6),
        (array.array("i", range(6)), np.int32, 6),
        (memoryview(np.arange(4, dtype=np.int16)), np.int16, 4),
        (np.zeros((), dtype=np.float32), np.float32, 1),
        (np.zeros(0, dtype=np.complex64), np.complex64, 0),
        ([bytearray(16), MPI.INT], np.int32, 4),
    ],
)
def test_anything_with_memory_is_a_buffer(data: Any, dtype: Any, count: int) -> None:
    made = simple(data, 0, writable=True)
    assert made is not None
    assert (made.dtype, made.count) == (np.dtype(dtype), count)


def test_blocks_are_equal_parts() -> None:
    made = simple(X, 0, False, blocks=4)
    assert made is not None
    assert made.count == 3
    with pytest.raises(BadBufferError, match=r"rank 7.*96 bytes.*multiple of 5"):
        simple(X, 7, False, blocks=5)


@pytest.mark.parametrize(
    ("spec", "counts", "displs"),
    [
        (X, (4, 4, 4), None),
        ([X, [1, 2, 3]], (1, 2, 3), None),
        ([X, [1, 2, 3], MPI.DOUBLE], (1, 2, 3), None),
        ([X, ([1, 2, 3], [9, 0, 4]), MPI.DOUBLE], (1, 2, 3), (9, 0, 4)),
        ([X, [1, 2, 3], [9, 0, 4], MPI.DOUBLE], (1, 2, 3), (9, 0, 4)),
        ([X, np.array([1, 0, 3]), np.array([9, 99, 4]), MPI.DOUBLE], (1, 0, 3), (9, 99, 4)),
        ([X, 2, MPI.DOUBLE], (2, 2, 2), None),
        ([X[:11], None, MPI.DOUBLE], (4, 4, 3), None),
    ],
)
def test_blocks_of_their_own_in_all_spellings(spec: Any, counts: Any, displs: Any) -> None:
    made = vector(spec, 0, False, 3)
    assert made is not None
    assert made.counts == counts
    assert made.displs == displs


def test_what_mpiopt_does_not_handle_is_left_to_mpi() -> None:
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    try:
        for spec in (
            [X, 1, column],
            np.zeros(3, dtype=np.longdouble),
            np.zeros(3, dtype="S4"),
            np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
            np.zeros(3, dtype=np.dtype(np.float64).newbyteorder()),
            [1.0, 2.0, 3.0],
            "text",
            42,
        ):
            assert simple(spec, 0, False) is None, spec
    finally:
        column.Free()


@pytest.mark.parametrize(
    ("spec", "writable", "message"),
    [
        (X[::2], False, r"rank 3.*shape \(6,\).*strides \(16,\).*not contiguous.*ascontiguous"),
        (X.reshape(3, 4)[:, :2], True, "rank 3.*not contiguous"),
        (np.broadcast_to(np.float64(1), 5), False, "rank 3.*not contiguous"),
        ([X, 13, MPI.DOUBLE], False, "rank 3: 1 x 13 float64 from element 0.*12 elements"),
        ([X, (10, 3), MPI.DOUBLE], False, "rank 3: 1 x 10 float64 from element 3.*12 elements"),
        ([X, -1, MPI.DOUBLE], False, "rank 3.*-1 float64.*do not fit"),
        (b"read only", True, r"rank 3.*receive buffer.*read-only.*writable array"),
        ([bytearray(7), MPI.INT], False, "rank 3.*7 bytes.*int32"),
    ],
)
def test_what_nobody_could_take_is_refused(spec: Any, writable: bool, message: str) -> None:
    with pytest.raises(BadBufferError, match=message):
        simple(spec, 3, writable)


def test_a_read_only_array_may_be_sent_but_not_filled() -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    assert simple(fixed, 0, writable=False) is not None
    with pytest.raises(BadBufferError, match=r"rank 1.*read-only.*x\.copy\(\)"):
        simple(fixed, 1, writable=True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([X, [1, 2], MPI.DOUBLE], "rank 3: 2 counts for 3 ranks; give one a rank"),
        ([X, ([1, 2, 3], [0, 1]), MPI.DOUBLE], "rank 3: 2 displacements for 3 ranks"),
        ([X, [5, 5, 5], MPI.DOUBLE], "rank 3: the block of rank 2, 5 float64 from element 10"),
        ([X, ([1, 1, 1], [0, -1, 3]), MPI.DOUBLE], "rank 3: the block of rank 1.*from element -1"),
        ([X, [1, -2, 1], MPI.DOUBLE], "rank 3: the block of rank 1, -2 float64"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(BadBufferError, match=message):
        vector(spec, 3, False, 3)


def test_a_bad_buffer_is_a_value_error_and_a_buffer_error() -> None:
    assert issubclass(BadBufferError, ValueError)
    assert issubclass(BadBufferError, BufferError)


def test_memory_that_is_not_aligned_is_taken() -> None:
    crooked = np.frombuffer(bytearray(17), dtype=np.uint8)[1:].view(np.float64)
    assert not crooked.flags.aligned
    made = simple(crooked, 0, True)
    assert made is not None
    assert made.address == crooked.ctypes.data
