"""Carries messages between the ranks of one node through rings of shared memory.

Every ordered pair of ranks has a *ring*: a counter of bytes written (by the sender alone), one of
bytes read (by the receiver alone), each on a cache line of its own, and `capacity` bytes of data. A
message is a frame: its length, its tag, then its bytes, padded to a cache line. Both ends know
which message comes next; the frame's head lets the receiver refuse one that it does not expect.

Against MPI's own shared memory this saves a copy, since what is accumulated is read where it lies.
Messages longer than the ring stream through it, a chunk at a time. Of *long* messages only the
address is sent: the receiver asks the kernel to copy them out of the sender's memory, chunk by
chunk, and accumulates each while it is in the cache. Where the kernel forbids that, they stream.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numba
import numpy as np
from mpi4py import MPI

from mpiopt import wire
from mpiopt.kernels.address import as_pointer, call_reduction, load_acquire, store_release

_LINE = 64
# So much is written before the receiver is told; it then reads while the sender goes on.
_CHUNK = 32 << 10
_LONG_CHUNK = 128 << 10
_LONG_BYTES = 768 << 10
_CAPACITY = 256 << 10
_NODE_BYTES = 8 << 20
_LEAST = 4 << 10
_NEVER = 1 << 62

# A ring, in words: the sender's line, the receiver's, the data. Only the counters ever change.
_WRITTEN, _PROCESS, _SIZE, _LONG = 0, 1, 2, 3  # bytes written, sender's pid, capacity, long from
_READ, _ASKED = 8, 10  # bytes read, what the receiver asks the kernel for
_DATA_AT = 2 * _LINE
_HEAD = 16  # bytes of a frame before the message

# A row's two words: bytes moved (NEW before the frame's head), and what the function needs.
NEW = -1
MISMATCH, UNREADABLE = -2, -3

_WORD = np.dtype(np.int64)
_inner = numba.njit(nogil=True, error_model="numpy")


@_inner
def _offer(ring: int, x: int, size: int, tag: int, state: int) -> int:
    """Send the address of a long message, then wait until it has been read."""
    r, s = as_pointer(ring, _WORD), as_pointer(state, _WORD)
    read = load_acquire(ring + 8 * _READ)
    if s[0] == NEW:
        if r[_SIZE] - (r[_WRITTEN] - read) < _LINE:
            return 0
        frame = as_pointer(ring + _DATA_AT + r[_WRITTEN] % r[_SIZE], _WORD)
        frame[0], frame[1], frame[2] = size, tag, x
        s[0], s[1] = 0, r[_WRITTEN] + _LINE
        store_release(ring, s[1])
        return 1
    if read < s[1]:
        return 0
    s[0] = size
    return 1


@_inner
def ring_send(ring: int, x: int, size: int, tag: int, state: int) -> int:
    """Write what there is room for; 1 if anything was written."""
    r, s = as_pointer(ring, _WORD), as_pointer(state, _WORD)
    if size >= r[_LONG]:
        return _offer(ring, x, size, tag, state)
    written, capacity = r[_WRITTEN], r[_SIZE]
    room = capacity - (written - load_acquire(ring + 8 * _READ))
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
def accumulate(add: int, z: int, y: int, arrived: int, local_first: int, items: int) -> None:
    """z = y op what has arrived, or the other way round; the lower rank's comes first."""
    if local_first:
        call_reduction(add, z, y, arrived, items)
    else:
        call_reduction(add, z, arrived, y, items)


@_inner
def _fetch(
    ring: int,
    x: int,
    size: int,
    tag: int,
    state: int,
    add: int,
    z: int,
    y: int,
    first: int,
    item: int,
) -> int:
    """Read the next chunk of a long message out of the sender's memory."""
    r, s = as_pointer(ring, _WORD), as_pointer(state, _WORD)
    if load_acquire(ring) == r[_READ]:
        return 0
    frame = as_pointer(ring + _DATA_AT + r[_READ] % r[_SIZE], _WORD)
    if s[0] == NEW:
        if frame[0] != size or frame[1] != tag:
            return MISMATCH
        s[0] = 0
    done, count = s[0], min(size - s[0], _LONG_CHUNK)
    r[_ASKED], r[_ASKED + 1] = x + done, count
    r[_ASKED + 2], r[_ASKED + 3] = frame[2] + done, count
    here = ring + 8 * _ASKED
    if wire.process_vm_readv(np.int32(r[_PROCESS]), here, 1, here + 16, 1, 0) != count:
        return UNREADABLE
    if add != 0:
        accumulate(add, z + done, y + done, x + done, first, count // item)
    s[0] += count
    if s[0] == size:
        store_release(ring + 8 * _READ, r[_READ] + _LINE)
    return 1


@_inner
def ring_recv(
    ring: int,
    x: int,
    size: int,
    tag: int,
    state: int,
    add: int,
    z: int,
    y: int,
    first: int,
    item: int,
) -> int:
    """Read what there is; 1 if anything was read, MISMATCH if it is another message.

    With `add` zero the message lands in x. Otherwise z = y op message (`first`) or message op y.
    """
    r, s = as_pointer(ring, _WORD), as_pointer(state, _WORD)
    if size >= r[_LONG]:
        return _fetch(ring, x, size, tag, state, add, z, y, first, item)
    read, capacity = r[_READ], r[_SIZE]
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
        done, count = s[0], min(size - s[0], min(_CHUNK, min(there, capacity - at) - head))
        if add == 0:
            wire.memmove(x + done, begin + head, count)
        else:
            accumulate(add, z + done, y + done, begin + head, first, count // item)
        s[0] += count
        taken = head + count
        if s[0] == size:
            taken += -(read + taken) % _LINE
        read += taken
        there -= taken
        store_release(ring + 8 * _READ, read)
        moved = 1
    return moved


class Rings:
    """The rings of a communicator whose ranks share a node, and where this rank finds them."""

    def __init__(self, node: MPI.Intracomm) -> None:
        size, rank = node.size, node.rank
        capacity = min(_CAPACITY, _NODE_BYTES // size**2) // _LINE * _LINE
        stride = _DATA_AT + capacity
        self._memory = _shared_memory(node, size * size * stride)
        words = np.frombuffer(self._memory, dtype=np.int64)
        # For each peer: the ring to it, and the ring from it.
        pairs = [(rank * size + peer, peer * size + rank) for peer in range(size)]
        self.table = words.ctypes.data + stride * np.array(pairs, dtype=np.int64).reshape(-1)
        self.address = self.table.ctypes.data
        long = _LONG_BYTES if _can_read_each_other(node) else _NEVER
        for outward, _ in pairs:
            at = outward * stride // 8
            words[[at + _PROCESS, at + _SIZE, at + _LONG]] = os.getpid(), capacity, long
        node.Barrier()


def _can_read_each_other(node: MPI.Intracomm) -> bool:
    """Whether the kernel lets every rank read every other one's memory; they all find the same."""
    word = np.array([node.rank + 1], dtype=np.int64)
    places = node.allgather((os.getpid(), word.ctypes.data))
    able = True
    for peer, (process, address) in enumerate(places):
        landing = np.zeros(1, dtype=np.int64)
        asked = np.array([landing.ctypes.data, 8, address, 8], dtype=np.int64)
        able &= wire.read_process(process, asked) == 8 and int(landing[0]) == peer + 1
    verdict: bool = node.allreduce(able, MPI.LAND)
    return verdict


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
        Path(path).unlink()
    memory = mmap.mmap(handle, size)
    os.close(handle)
    return memory


def wanted(node: MPI.Intracomm, comm: MPI.Intracomm) -> bool:
    """Whether all ranks share a node, and are few enough for rings between all pairs."""
    return node.size == comm.size > 1 and _NODE_BYTES // node.size**2 >= _LEAST
