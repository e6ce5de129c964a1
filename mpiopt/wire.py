"""Turns mpi4py's MPI into functions and numbers that compiled code can use.

The only file that knows the C side: where MPI's functions are, how wide its handles are, and
where a NumPy array keeps its fields. Open MPI's handles are pointers, MPICH's 32-bit integers;
passed as 64-bit integers the same machine code serves both, so the cache on disk does too.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding
import numpy as np
from mpi4py import MPI
from numba import types

_I32, _I64 = types.int32, types.int64
_MPI = ctypes.CDLL(MPI.__file__)
_LIBC = ctypes.CDLL(None)


def _external(library: ctypes.CDLL, name: str, result: Any, *args: Any) -> Any:
    """A C function under a name of our own, so that cached machine code finds it when loaded."""
    symbol = f"mpiopt_{name}"
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    llvmlite.binding.add_symbol(symbol, address)
    return types.ExternalFunction(symbol, result(*args))


# (buffer, count, datatype, peer, tag, communicator, request slot) -> error code
mpi_isend = _external(_MPI, "MPI_Isend", _I32, _I64, _I32, _I64, _I32, _I32, _I64, _I64)
mpi_irecv = _external(_MPI, "MPI_Irecv", _I32, _I64, _I32, _I64, _I32, _I32, _I64, _I64)
# (request slot, flag slot, status) -> error code
mpi_test = _external(_MPI, "MPI_Test", _I32, _I64, _I64, _I64)
# (status, datatype, count slot) -> error code
mpi_get_count = _external(_MPI, "MPI_Get_count", _I32, _I64, _I64, _I64)
mpi_cancel = _external(_MPI, "MPI_Cancel", _I32, _I64)
mpi_request_free = _external(_MPI, "MPI_Request_free", _I32, _I64)
mpi_wtime = _external(_MPI, "MPI_Wtime", types.float64)
memmove = _external(_LIBC, "memmove", _I64, _I64, _I64, _I64)
sched_yield = _external(_LIBC, "sched_yield", _I32)
# (process, local vector, its length, remote vector, its length, flags) -> bytes
process_vm_readv = _external(_LIBC, "process_vm_readv", _I64, _I32, _I64, _I64, _I64, _I64, _I64)
usleep = _external(_LIBC, "usleep", _I32, _I32)


def read_process(process: int, asked: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Copy from another process: `asked` is where to, how much, where from, how much."""
    here = asked.ctypes.data
    count: int = _LIBC.process_vm_readv(
        process, ctypes.c_void_p(here), 1, ctypes.c_void_p(here + 16), 1, 0
    )
    return count


def handle(thing: MPI.Comm | MPI.Datatype) -> int:
    """An MPI handle as the integer that the C side takes for it."""
    kind = ctypes.c_int64 if MPI._sizeof(thing) == 8 else ctypes.c_int32
    return kind.from_address(MPI._addressof(thing)).value


def _is_mpich() -> bool:
    # MPICH, and everything that shares its ABI (Intel MPI, MVAPICH, Cray MPICH, ...).
    return MPI._sizeof(MPI.COMM_WORLD) == 4


BYTE = handle(MPI.BYTE)
STATUS_WORDS = -(-MPI._sizeof(MPI.Status()) // 8)
STATUS_IGNORE = 1 if _is_mpich() else 0

# Of an array object, in words: type, data, number of dimensions, dimensions, dtype, flags.
_HEAD = object.__basicsize__ // 8
FIELD_TYPE = _HEAD - 1
FIELD_DATA = _HEAD
FIELD_NDIM = _HEAD + 1
FIELD_SHAPE = _HEAD + 2
FIELD_DTYPE = _HEAD + 5
FIELD_FLAGS = _HEAD + 6
CONTIGUOUS, ALIGNED, WRITEABLE = 0x001, 0x100, 0x400
ARRAY_TYPE = id(np.ndarray)


def _fields_are_where_we_think() -> bool:
    """Compare the fields of an array, read at our offsets, with what NumPy says they are."""
    probe = np.zeros((2, 3), dtype=np.float32)
    word = ctypes.c_int64 * (_HEAD + 7)
    fields = word.from_address(id(probe))
    shape = (ctypes.c_int64 * 2).from_address(fields[FIELD_SHAPE])
    return (
        fields[FIELD_TYPE] == ARRAY_TYPE
        and fields[FIELD_DATA] == probe.ctypes.data
        and fields[FIELD_NDIM] & 0xFFFFFFFF == 2
        and tuple(shape) == (2, 3)
        and fields[FIELD_DTYPE] == id(probe.dtype)
        and fields[FIELD_FLAGS] & 0xFFFF == probe.flags.num
    )


# Elsewhere (another NumPy ABI, another Python) calls take the ordinary path, a microsecond slower.
ARRAYS_READABLE = _fields_are_where_we_think()
