"""Turns buffer specifications, as mpi4py takes them, into address, dtype and counts.

Returns None for what mpiopt leaves to MPI (derived datatypes, device memory, long double, ...), and
raises BadBufferError for what MPI could not take either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiopt.errors import BadBufferError

_HANDLED = frozenset("?bhilqBHILQefdFD")
_NOTHING = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A place in memory that holds elements; `array` keeps it alive."""

    array: np.ndarray[Any, Any]
    address: int
    dtype: np.dtype[Any]
    count: int  # elements in all, or in one block of `simple(..., blocks)`
    counts: tuple[int, ...] = ()
    displs: tuple[int, ...] | None = None


def is_in_place(spec: Any) -> bool:
    """Whether a specification stands for the other buffer; mpi4py takes None for it too."""
    return spec is None or spec is MPI.IN_PLACE


def _dtype_of(datatype: Any) -> np.dtype[Any] | None:
    """NumPy's dtype for a predefined MPI datatype (or its name), if there is one."""
    if isinstance(datatype, str):
        datatype = MPI._typedict.get(datatype)
    if not isinstance(datatype, MPI.Datatype) or datatype == MPI.DATATYPE_NULL:
        return None
    if not datatype.is_predefined:
        return None
    code = datatype.typechar
    return np.dtype(code) if code in _HANDLED else None


def _array(data: Any, rank: int, writable: bool) -> np.ndarray[Any, Any] | None:
    """The data as a contiguous array, or None if it is not plain memory of the host."""
    if not isinstance(data, np.ndarray):
        try:
            data = np.asarray(memoryview(data))
        except (TypeError, ValueError, BufferError):
            return None
    flags = data.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise BadBufferError(
            f"rank {rank}: the buffer of shape {data.shape} and strides {data.strides} is not "
            "contiguous; pass np.ascontiguousarray(x), and copy the result back if it is written"
        )
    if writable and not flags.writeable:
        raise BadBufferError(
            f"rank {rank}: the receive buffer of shape {data.shape} is read-only; "
            "pass a writable array, such as x.copy()"
        )
    array: np.ndarray[Any, Any] = data
    return array


def _split(spec: Any, vector: bool) -> tuple[Any, Any, Any, Any]:
    """A specification's data, counts, displacements and datatype."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    data, *rest = spec if len(spec) in (2, 3, 4) else (spec,)
    counts, displs, datatype = None, None, None
    if len(rest) == 1 and isinstance(rest[0], (MPI.Datatype, str)):
        (datatype,) = rest
    elif len(rest) in (1, 2):
        counts = rest[0]
        datatype = rest[1] if len(rest) == 2 else None
        if isinstance(counts, tuple) or (isinstance(counts, list) and not vector):
            counts, displs = counts
    elif len(rest) == 3:
        counts, displs, datatype = rest
    return data, counts, displs, datatype


def _open(spec: Any, rank: int, writable: bool, vector: bool) -> tuple[Any, ...] | None:
    data, counts, displs, datatype = _split(spec, vector)
    if data is None and datatype is None:
        return None
    array = _NOTHING if data is None else _array(data, rank, writable)
    dtype = array.dtype if array is not None and datatype is None else _dtype_of(datatype)
    if array is None or dtype is None or dtype.char not in _HANDLED or not dtype.isnative:
        return None
    # Memory that is not aligned is taken too: it is slower, but what one rank left to MPI, the
    # others would wait for.
    return array, array.ctypes.data, dtype, counts, displs


def simple(spec: Any, rank: int, writable: bool, blocks: int = 1) -> Buffer | None:
    """One message, or `blocks` equal ones of which the count is given."""
    opened = _open(spec, rank, writable, vector=False)
    if opened is None:
        return None
    array, address, dtype, count, displ = opened
    displ = 0 if displ is None else index(displ)
    room = array.nbytes // dtype.itemsize - displ
    if count is None and room >= 0:
        if array.nbytes % dtype.itemsize or room % blocks:
            raise BadBufferError(
                f"rank {rank}: a buffer of {array.nbytes} bytes does not hold {blocks} equal "
                f"block(s) of {dtype}; its length must be a multiple of {blocks}"
            )
        count = room // blocks
    count = index(count)
    if displ < 0 or count < 0 or count * blocks > room:
        raise BadBufferError(
            f"rank {rank}: {blocks} x {count} {dtype} from element {displ} on do not fit a buffer "
            f"of {array.nbytes // dtype.itemsize} elements"
        )
    return Buffer(array, address + displ * dtype.itemsize, dtype, count)


def vector(spec: Any, rank: int, writable: bool, blocks: int) -> Buffer | None:
    """One block a rank, each with its own count and displacement."""
    opened = _open(spec, rank, writable, vector=True)
    if opened is None:
        return None
    array, address, dtype, given, given_displs = opened
    room = array.nbytes // dtype.itemsize
    if given is None:
        if array.nbytes % dtype.itemsize:
            raise BadBufferError(
                f"rank {rank}: a buffer of {array.nbytes} bytes does not hold whole {dtype}; give "
                "counts"
            )
        counts = tuple(room // blocks + (room % blocks > i) for i in range(blocks))
    else:
        counts = _integers(given, blocks, rank, "counts")
    if given_displs is None:
        displs = None
        starts: Sequence[int] = list(accumulate(counts, initial=0))[:-1]
    elif _is_integer(given_displs):
        starts = displs = tuple(index(given_displs) * i for i in range(blocks))
    else:
        starts = displs = _integers(given_displs, blocks, rank, "displacements")
    for block, (start, count) in enumerate(zip(starts, counts, strict=True)):
        if count < 0 or (count and not 0 <= start <= room - count):
            raise BadBufferError(
                f"rank {rank}: the block of rank {block}, {count} {dtype} from element {start} on, "
                f"does not fit a buffer of {room} elements"
            )
    return Buffer(array, address, dtype, sum(counts), counts, displs)


def _is_integer(given: Any) -> bool:
    """Whether it is one number for all blocks, be it an array without dimensions."""
    return hasattr(given, "__index__") and np.ndim(given) == 0


def _integers(given: Any, blocks: int, rank: int, what: str) -> tuple[int, ...]:
    if _is_integer(given):
        return (index(given),) * blocks
    values = tuple(index(value) for value in given)
    if len(values) != blocks:
        raise BadBufferError(
            f"rank {rank}: {len(values)} {what} for {blocks} ranks; give one a rank"
        )
    return values
