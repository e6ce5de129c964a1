"""Runs a plan: the one compiled loop between a schedule and MPI's point-to-point calls.

A *plan* is a block of 64-bit words: a header (H_...), then rows (R_...), the first row of every
round, the state of every lane (L_...) and the request slots. A *row* is one message or one copy.
A *segment* is a part of every row; all segments go through all rounds. A *lane* carries one
segment at a time, so that one segment is reduced while others are on the wire. Segment s runs in
lane s mod lanes and has tag s mod tags. Ranks short of scratch have fewer lanes than others, but
all have the same tags, and segments of one tag run in one lane, in their order: so both ends agree
on which message is which, whatever the order in which lanes get on.

The loop can be left and entered again at any point where it would wait: it returns PAUSED after
`patience` fruitless looks, with everything needed to go on kept in the plan. Deadlines, Ctrl-C and
background progress live in the caller and cost the loop nothing. It allocates nothing.

Rows of a round are started receives first, and finished in row order; `plan` sees to it that a
row which overwrites what another one sends comes after that one.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from mpiopt import rings, wire
from mpiopt.kernels.address import as_pointer
from mpiopt.kernels.jit import jit
from mpiopt.schedule import Kind

DONE, PAUSED, FAILED, MISS = range(4)

# Header words. Constants of the plan:
(
    H_ROUNDS,  # number of rounds
    H_SEGMENTS,
    H_LANES,
    H_ITEM,  # bytes of one element
    H_COMM,
    H_BYTE,
    H_IGNORE,  # MPI_STATUS_IGNORE
    H_TAG,  # tag of segment 0
    H_TAGS,  # segment s has the tag of s mod this; all ranks agree on it, not on their lanes
    H_REDUCTION,  # address of the C function that accumulates
    H_FIRST,  # word of the table of first rows
    H_LANE,  # word of lane 0
    H_REQUEST,  # word of the request slots
    H_WIDTH,  # request slots of one lane
    H_STRIDE,  # scratch bytes of one lane
    H_RINGS,  # address of the table of rings; 0 sends by MPI
    H_SPINS,  # looks before the processor is offered to others
    H_NAP,  # microseconds to sleep then; 0 only yields
    # Set for each call: where the three regions begin.
    H_INPUT,
    H_OUTPUT,
    H_SCRATCH,
    # State of a call.
    H_RUNNING,
    H_LIVE,  # lanes at work
    H_FLAG,  # what MPI answers
    H_STATUS,  # word where MPI describes a message
    H_STARTED,
    H_FAIL_ROW,
    H_FAIL_CODE,
    # Totals, for the ledger.
    H_CALLS,
    H_MESSAGES,
    H_SENT,  # bytes
    H_NANOSECONDS,
    HEADER,
) = range(33)

# Words of a row. X: what is sent, or where a message lands; an ADD sets Z = X op Y (or Y op X).
(
    R_KIND,
    R_PEER,
    R_COUNT,
    R_X,
    R_X_AT,
    R_Y,
    R_Y_AT,
    R_Z,
    R_Z_AT,
    R_LOCAL_FIRST,
    R_HEADS,  # 1 in the first row of a message
    R_ROUND,
    R_AFTER,  # the row before it in the round with the same peer and direction, or -1
    ROW,
) = range(14)
INPUT, OUTPUT, SCRATCH = range(3)
COPY = 5  # a row kind of its own: Y = X, both local

# Words for the progress of a row: MPI's request, or the two words of `rings`.
SLOT = 2
# Words of a lane: its segment (-1: none left), its round, and how many rows of it are finished.
L_SEGMENT, L_ROUND, L_FINISHED, LANE = range(4)

_SEND, _ADD, _RECV = int(Kind.SEND), int(Kind.ADD), int(Kind.RECV)
_WORD = np.dtype(np.int64)
_inner = numba.njit(nogil=True, error_model="numpy")


@_inner
def _cut(count: int, segment: int, segments: int) -> int:
    """The first element of a segment, on a cache line wherever the row is on one."""
    if segment >= segments:
        return count
    return (count * segment // segments) & -16


@_inner
def _address(h: Any, region: int, offset: int, start: int, lane: int) -> int:
    if region == SCRATCH:
        return h[H_SCRATCH] + lane * h[H_STRIDE] + offset
    return h[H_INPUT + region] + offset + start * h[H_ITEM]


@_inner
def _fail(h: Any, row: int, code: int) -> int:
    h[H_FAIL_ROW] = row
    h[H_FAIL_CODE] = code
    return -1


@_inner
def _part(h: Any, lane: int, at: int) -> tuple[int, int]:
    """The part of a row that belongs to the lane's segment: first element, and how many."""
    segment, segments = h[h[H_LANE] + lane * LANE + L_SEGMENT], h[H_SEGMENTS]
    start = _cut(h[at + R_COUNT], segment, segments)
    return start, _cut(h[at + R_COUNT], segment + 1, segments) - start


@_inner
def _start_message(h: Any, lane: int, row: int, slot: int) -> int:
    at = HEADER + row * ROW
    start, count = _part(h, lane, at)
    size = np.int32(count * h[H_ITEM])
    if h[at + R_KIND] == _SEND:
        first = h[h[H_LANE] + lane * LANE + L_SEGMENT] == 0
        h[H_MESSAGES] += h[at + R_HEADS] if first else 0
        h[H_SENT] += size
    if h[H_RINGS] != 0:
        words = as_pointer(slot, _WORD)
        words[0], words[1] = rings.NEW, 0
        return 0
    x = _address(h, h[at + R_X], h[at + R_X_AT], start, lane)
    segment = h[h[H_LANE] + lane * LANE + L_SEGMENT]
    peer, tag = np.int32(h[at + R_PEER]), np.int32(h[H_TAG] + segment % h[H_TAGS])
    if h[at + R_KIND] == _SEND:
        return wire.mpi_isend(x, size, h[H_BYTE], peer, tag, h[H_COMM], slot)
    return wire.mpi_irecv(x, size, h[H_BYTE], peer, tag, h[H_COMM], slot)


@_inner
def _local(h: Any, lane: int, row: int) -> None:
    """The local half of a row: accumulate what has landed, or copy."""
    at = HEADER + row * ROW
    start, count = _part(h, lane, at)
    x = _address(h, h[at + R_X], h[at + R_X_AT], start, lane)
    y = _address(h, h[at + R_Y], h[at + R_Y_AT], start, lane)
    if h[at + R_KIND] == COPY:
        wire.memmove(y, x, count * h[H_ITEM])
        return
    z = _address(h, h[at + R_Z], h[at + R_Z_AT], start, lane)
    rings.accumulate(h[H_REDUCTION], z, y, x, h[at + R_LOCAL_FIRST], count)


@_inner
def _start_round(h: Any, plan: int, lane: int) -> int:
    state = h[H_LANE] + lane * LANE
    first = h[h[H_FIRST] + h[state + L_ROUND]]
    last = h[h[H_FIRST] + h[state + L_ROUND] + 1]
    slots = plan + 8 * (h[H_REQUEST] + lane * h[H_WIDTH] * SLOT)
    h[state + L_FINISHED] = 0
    for row in range(first, last):
        kind = h[HEADER + row * ROW + R_KIND]
        if kind in (_ADD, _RECV):
            code = _start_message(h, lane, row, slots + 8 * SLOT * (row - first))
            if code != 0:
                return _fail(h, row, code)
    for row in range(first, last):
        kind = h[HEADER + row * ROW + R_KIND]
        if kind == _SEND:
            code = _start_message(h, lane, row, slots + 8 * SLOT * (row - first))
            if code != 0:
                return _fail(h, row, code)
        elif kind == COPY:
            _local(h, lane, row)
    return 0


@_inner
def _finish_by_mpi(h: Any, plan: int, lane: int, first: int, last: int) -> int:
    """Finish rows in their order, as MPI completes them: 1 if any, 0 if none, -1 on an error."""
    state = h[H_LANE] + lane * LANE
    slots = plan + 8 * (h[H_REQUEST] + lane * h[H_WIDTH] * SLOT)
    moved = 0
    for row in range(first + h[state + L_FINISHED], last):
        kind = h[HEADER + row * ROW + R_KIND]
        if kind != COPY:
            h[H_FLAG] = 0
            slot = slots + 8 * SLOT * (row - first)
            status = h[H_IGNORE] if kind == _SEND else plan + 8 * h[H_STATUS]
            code = wire.mpi_test(slot, plan + 8 * H_FLAG, status)
            if code != 0:
                return _fail(h, row, code)
            if h[H_FLAG] == 0:
                return moved
            if kind != _SEND:
                # MPI takes a message that is too short for what was asked for.
                wire.mpi_get_count(status, h[H_BYTE], plan + 8 * H_FLAG)
                if h[H_FLAG] != _part(h, lane, HEADER + row * ROW)[1] * h[H_ITEM]:
                    return _fail(h, row, rings.MISMATCH)
            if kind == _ADD:
                _local(h, lane, row)
        h[state + L_FINISHED] += 1
        moved = 1
    return moved


@_inner
def _move_in_ring(h: Any, lane: int, row: int, slot: int, in_turn: bool) -> int:
    """Take one row on: 1 if it moved, 0 if not, a negative number on an error."""
    at = HEADER + row * ROW
    start, count = _part(h, lane, at)
    size, kind, tag = count * h[H_ITEM], h[at + R_KIND], h[H_TAG]
    x = _address(h, h[at + R_X], h[at + R_X_AT], start, lane)
    table = as_pointer(h[H_RINGS], _WORD)
    if kind == _SEND:
        return rings.ring_send(table[2 * h[at + R_PEER]], x, size, tag, slot)
    inward = table[2 * h[at + R_PEER] + 1]
    if kind == _RECV or not in_turn:
        return rings.ring_recv(inward, x, size, tag, slot, 0, 0, 0, 0, 1)
    y = _address(h, h[at + R_Y], h[at + R_Y_AT], start, lane)
    z = _address(h, h[at + R_Z], h[at + R_Z_AT], start, lane)
    words, add, first = as_pointer(slot, _WORD), h[H_REDUCTION], h[at + R_LOCAL_FIRST]
    done, landed = words[1], max(words[0], 0)
    if done < landed:
        # What came before the row's turn has landed in x.
        items = (landed - done) // h[H_ITEM]
        rings.accumulate(add, z + done, y + done, x + done, first, items)
    moved = 1
    if words[0] < size:
        moved = rings.ring_recv(inward, x, size, tag, slot, add, z, y, first, h[H_ITEM])
    words[1] = max(words[0], 0)
    return moved


@_inner
def _finish_by_rings(h: Any, plan: int, lane: int, first: int, last: int) -> int:
    """Move every row of the round that can move; as _finish_by_mpi."""
    state = h[H_LANE] + lane * LANE
    slots = plan + 8 * (h[H_REQUEST] + lane * h[H_WIDTH] * SLOT)
    moved = 0
    for row in range(first + h[state + L_FINISHED], last):
        at = HEADER + row * ROW
        slot = slots + 8 * SLOT * (row - first)
        words = as_pointer(slot, _WORD)
        in_turn = row == first + h[state + L_FINISHED]
        if h[at + R_KIND] != COPY:
            size = _part(h, lane, at)[1] * h[H_ITEM]
            after = h[at + R_AFTER]
            if after >= 0 and after >= first + h[state + L_FINISHED]:
                earlier = as_pointer(slots + 8 * SLOT * (after - first), _WORD)
                if earlier[0] < _part(h, lane, HEADER + after * ROW)[1] * h[H_ITEM]:
                    continue
            if words[0] < size or (in_turn and words[1] < size and h[at + R_KIND] == _ADD):
                went = _move_in_ring(h, lane, row, slot, in_turn)
                if went < 0:
                    return _fail(h, row, went)
                moved |= went
            if words[0] < size:
                continue
        if in_turn:
            h[state + L_FINISHED] += 1
            moved = 1
    return moved


@_inner
def _advance(h: Any, plan: int, lane: int) -> int:
    """Take a lane as far as it goes without waiting: 1 if it moved, 0 if not, -1 on an error."""
    state = h[H_LANE] + lane * LANE
    moved = 0
    while True:
        first = h[h[H_FIRST] + h[state + L_ROUND]]
        last = h[h[H_FIRST] + h[state + L_ROUND] + 1]
        if h[H_RINGS] != 0:
            went = _finish_by_rings(h, plan, lane, first, last)
        else:
            went = _finish_by_mpi(h, plan, lane, first, last)
        if went < 0:
            return went
        moved |= went
        if first + h[state + L_FINISHED] < last:
            return moved
        h[state + L_ROUND] += 1
        if h[state + L_ROUND] == h[H_ROUNDS]:
            h[state + L_ROUND] = 0
            h[state + L_SEGMENT] += h[H_LANES]
            if h[state + L_SEGMENT] >= h[H_SEGMENTS]:
                h[state + L_SEGMENT] = -1
                h[H_LIVE] -= 1
                return 1
        if _start_round(h, plan, lane) != 0:
            return -1
        moved = 1


@_inner
def _begin(h: Any, plan: int) -> int:
    h[H_RUNNING] = 1
    h[H_STARTED] = np.int64(wire.mpi_wtime() * 1e9)
    h[H_LIVE] = h[H_LANES] if h[H_ROUNDS] > 0 else 0
    for lane in range(h[H_LIVE]):
        state = h[H_LANE] + lane * LANE
        h[state + L_SEGMENT] = lane
        h[state + L_ROUND] = 0
        if _start_round(h, plan, lane) != 0:
            return -1
    return 0


@_inner
def _run(plan: int, patience: int) -> int:
    h = as_pointer(plan, _WORD)
    if h[H_RUNNING] == 0 and _begin(h, plan) != 0:
        return FAILED
    idle = 0
    while h[H_LIVE] > 0:
        moved = 0
        for lane in range(h[H_LANES]):
            if h[h[H_LANE] + lane * LANE + L_SEGMENT] >= 0:
                went = _advance(h, plan, lane)
                if went < 0:
                    return FAILED
                moved |= went
        idle = 0 if moved else idle + 1
        if idle > patience:
            return PAUSED
        if idle > h[H_SPINS]:
            if h[H_NAP] > 0:
                wire.usleep(np.int32(h[H_NAP]))
            else:
                wire.sched_yield()
    h[H_CALLS] += 1
    h[H_NANOSECONDS] += np.int64(wire.mpi_wtime() * 1e9) - h[H_STARTED]
    h[H_RUNNING] = 0
    return DONE


@jit(types.int64(types.int64, types.int64))
def run(plan: int, patience: int) -> int:
    """Begin a plan, or go on with it where it was left."""
    return _run(plan, patience)


@jit(types.int64(types.int64))
def abandon(plan: int) -> int:
    """Give up a call: cancel its receives; returns how many sends are still under way."""
    h = as_pointer(plan, _WORD)
    sends = 0
    for lane in range(h[H_LANES] if h[H_RINGS] == 0 else 0):
        state = h[H_LANE] + lane * LANE
        if h[state + L_SEGMENT] < 0:
            continue
        first = h[h[H_FIRST] + h[state + L_ROUND]]
        last = h[h[H_FIRST] + h[state + L_ROUND] + 1]
        for row in range(first + h[state + L_FINISHED], last):
            slot = plan + 8 * (h[H_REQUEST] + (lane * h[H_WIDTH] + row - first) * SLOT)
            kind = h[HEADER + row * ROW + R_KIND]
            if kind in (_ADD, _RECV):
                wire.mpi_cancel(slot)
                wire.mpi_request_free(slot)
            elif kind == _SEND:
                h[H_FLAG] = 0
                wire.mpi_test(slot, plan + 8 * H_FLAG, h[H_IGNORE])
                sends += h[H_FLAG] == 0
    h[H_LIVE] = 0
    h[H_RUNNING] = 0
    return sends


# The table of hot calls: the plan last run, the number of entries, the address of NumPy's array
# type (it differs from process to process, so it must not be compiled in), looks before a pause,
# then the entries. A call
# is recognised by the identity of everything in it that is not an array, and by dtype, length and
# layout of every array.
T_PLAN, T_ENTRIES, T_ARRAY_TYPE, T_PATIENCE, TABLE = range(5)
(
    E_CALL,
    E_EXTRA,
    E_ALGORITHM,
    E_SEND,
    E_SEND_COUNT,
    E_RECV,
    E_RECV_COUNT,
    E_PLAN,
    E_QUICK,  # whether the call is so short that it keeps the interpreter lock
    ENTRY,
) = range(10)


@_inner
def _matches(thing: int, array_type: int, wanted: int, count: int, flags: int) -> bool:
    """Is it the object `wanted` (count < 0), or an array of that dtype, length and layout?"""
    if count < 0:
        return thing == wanted
    fields = as_pointer(thing, _WORD)
    if fields[wire.FIELD_TYPE] != array_type or fields[wire.FIELD_DTYPE] != wanted:
        return False
    if fields[wire.FIELD_FLAGS] & flags != flags:
        return False
    shape, items = as_pointer(fields[wire.FIELD_SHAPE], _WORD), 1
    for axis in range(fields[wire.FIELD_NDIM] & 0xFFFFFFFF):
        items *= shape[axis]
    return items == count


_READ = wire.CONTIGUOUS | wire.ALIGNED
_WRITE = _READ | wire.WRITEABLE


@jit(types.int64(*(types.int64,) * 6), nogil=False)
def replay(table: int, call: int, extra: int, algorithm: int, send: int, recv: int) -> int:
    """Find the plan of a call seen before, given the ids of its arguments, and run it if quick.

    MISS if there is none; PAUSED if there is and it has to be run, or run on. The interpreter lock
    is kept: a quick call is over before it could be given away, or soon pauses.
    """
    t = as_pointer(table, _WORD)
    array = t[T_ARRAY_TYPE]
    for entry in range(t[T_ENTRIES]):
        at = TABLE + entry * ENTRY
        if t[at + E_CALL] != call or t[at + E_EXTRA] != extra or t[at + E_ALGORITHM] != algorithm:
            continue
        if not _matches(send, array, t[at + E_SEND], t[at + E_SEND_COUNT], _READ):
            continue
        if not _matches(recv, array, t[at + E_RECV], t[at + E_RECV_COUNT], _WRITE):
            continue
        t[T_PLAN] = t[at + E_PLAN]
        h = as_pointer(t[T_PLAN], _WORD)
        if t[at + E_SEND_COUNT] >= 0:
            h[H_INPUT] = as_pointer(send, _WORD)[wire.FIELD_DATA]
        if t[at + E_RECV_COUNT] >= 0:
            h[H_OUTPUT] = as_pointer(recv, _WORD)[wire.FIELD_DATA]
        return _run(t[T_PLAN], t[T_PATIENCE]) if t[at + E_QUICK] != 0 else PAUSED
    return MISS


def load() -> None:
    """Compile what this module runs, or load it from the cache."""
    for compiled in (run, abandon, replay):
        compiled.entry_point  # noqa: B018
