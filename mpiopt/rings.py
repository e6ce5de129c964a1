"""Carries messages between the ranks of one node through rings of shared memory.

Every ordered pair of ranks has a *ring*: a counter of bytes written (by the sender alone), one of
bytes read (by the receiver alone), each on a cache line of its own, and `capacity` bytes of data. A
message is a frame: its length, its tag, then its bytes, padded to a cache line. Both ends know
which message comes next; the frame's head lets the receiver refuse one that it does not expect.

Against MPI's own shared memory this saves a copy, since what is accumulated is read where it lies,
and the system calls with which MPI reads longer messages out of another process. Messages longer
than the ring stream through it, a chunk at a time.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numba
import numpy as np
from mpi4py import MPI

from mpiopt import wire
from mpiopt.kernels.address import as_pointer, call_reduction, load_acquire, store_release

_LINE = 64
_READ_AT, _DATA_AT = _LINE, 2 * _LINE  # the counter of bytes written is at 0
_HEAD = 16
# So much is written before the receiver is told; it then reads while the sender goes on.
_CHUNK = 8 << 10
_NODE_BYTES = 8 << 20
_CAPACITY = 128 << 10
_LEAST = 4 << 10

# A row's two words: bytes moved (NEW before the frame's head), and bytes accumulated.
NEW = -1
MISMATCH = -2

_WORD = np.dtype(np.int64)
_inner = numba.njit(nogil=True, error_model="numpy")


@_inner
def ring_send(ring: int, capacity: int, x: int, size: int, tag: int, state: int) -> int:
    """Write what there is room for; 1 if anything was written."""
    s = as_pointer(state, _WORD)
    written = as_pointer(ring, _WORD)[0]
    room = capacity - (written - load_acquire(ring + _READ_AT))
    moved = 0
    while s[0] < size:
        if room < _LINE:
            return moved
        at = written % capacity
        begin = ring + _DATA_AT + at
        head = 0
        if s[0] == NEW:
            frame = as_pointer(begin, _WORD)
            frame[0], frame[1] = size, tag
            head, s[0] = _HEAD, 0
        count = min(size - s[0], min(_CHUNK, min(room, capacity - at) - head))
        if s[0] + count < size:
            count &= -_HEAD  # whole elements, whatever the message before has left
        wire.memmove(begin + head, x + s[0], count)
        s[0] += count
        taken = head + count
        if s[0] == size:
            taken += -(written + taken) % _LINE
        written += taken
        room -= taken
        store_release(ring, written)
        moved = 1
    return moved


@_inner
def ring_recv(
    ring: int,
    capacity: int,
    x: int,
    size: int,
    tag: int,
    state: int,
    reduction: int,
    z: int,
    y: int,
    local_first: int,
    item: int,
) -> int:
    """Read what there is; 1 if anything was read, MISMATCH if it is another message.

    With a reduction, z = y op what arrives, straight from the ring; otherwise it lands in x.
    """
    s = as_pointer(state, _WORD)
    read = as_pointer(ring + _READ_AT, _WORD)[0]
    there = load_acquire(ring) - read
    moved = 0
    while s[0] < size:
        if there == 0:
            return moved
        at = read % capacity
        begin = ring + _DATA_AT + at
        head = 0
        if s[0] == NEW:
            frame = as_pointer(begin, _WORD)
            if frame[0] != size or frame[1] != tag:
                return MISMATCH
            head, s[0] = _HEAD, 0
        count = min(size - s[0], min(_CHUNK, min(there, capacity - at) - head))
        if reduction == 0:
            wire.memmove(x + s[0], begin + head, count)
        elif local_first:
            call_reduction(reduction, z + s[0], y + s[0], begin + head, count // item)
        else:
            call_reduction(reduction, z + s[0], begin + head, y + s[0], count // item)
        s[0] += count
        taken = head + count
        if s[0] == size:
            taken += -(read + taken) % _LINE
        read += taken
        there -= taken
        store_release(ring + _READ_AT, read)
        moved = 1
    return moved


class Rings:
    """The rings of a communicator whose ranks share a node, and where this rank finds them."""

    def __init__(self, node: MPI.Intracomm) -> None:
        size, rank = node.size, node.rank
        self.capacity = min(_CAPACITY, _NODE_BYTES // size**2) // _LINE * _LINE
        stride = _DATA_AT + self.capacity
        self._memory = _shared_memory(node, size * size * stride)
        base = np.frombuffer(self._memory, dtype=np.uint8).ctypes.data
        # For each peer: the ring to it, and the ring from it.
        pairs = [(rank * size + peer, peer * size + rank) for peer in range(size)]
        self.table = base + stride * np.array(pairs, dtype=np.int64).reshape(-1)
        self.address = self.table.ctypes.data


def _shared_memory(node: MPI.Intracomm, size: int) -> mmap.mmap:
    """Zeroed memory that all ranks of a node see; it goes when the last of them ends."""
    # A plain file, gone from its folder as soon as all have opened it: nothing is left behind by a
    # crash, nobody else can open it, and MPI's windows (and their warnings) are not needed.
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    handle, path = -1, ""
    if node.rank == 0:
        handle, path = tempfile.mkstemp(prefix="mpiopt-", dir=folder)
        os.truncate(handle, size)
    path = node.bcast(path)
    if node.rank != 0:
        handle = os.open(path, os.O_RDWR)
    node.Barrier()
    if node.rank == 0:
        os.unlink(path)
    memory = mmap.mmap(handle, size)
    os.close(handle)
    return memory


def wanted(node: MPI.Intracomm, comm: MPI.Intracomm) -> bool:
    """Whether all ranks share a node, and are few enough for rings between all pairs."""
    return node.size == comm.size > 1 and _NODE_BYTES // node.size**2 >= _LEAST
