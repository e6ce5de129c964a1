"""Turns a schedule and the places of its blocks into the rows that the executor runs.

Where a block's value is. It starts, if the rank has it, in the *input*; once written it lives at
its *home*: in the output if it belongs there, else in the lane's scratch. A block that has not been
written yet is sent from, and accumulated with, the input where it lies, so most calls copy nothing:
the first ADD lands at home and adds the input to it; later ones land in a *stage* of the scratch.

Invariants. How a message is cut into rows depends only on what both ends know (block lengths,
segments, the longest row), never on one rank's addresses. Where a range of blocks must be one
message but lies in two places, its blocks are first copied home, or given a home in the scratch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mpiopt.executor import COPY, INPUT, OUTPUT, SCRATCH
from mpiopt.schedule import RECEIVING, SENDING, Kind, Round, Schedule, Step

Place = tuple[int, int]  # region, offset in bytes
_LINE = 64


@dataclass(frozen=True)
class Layout:
    """Where blocks are in the user's buffers: lengths and offsets in elements.

    `source` and `target` say where the blocks that the rank starts with, and must end with, lie in
    the input and in the output. With `in_place`, source offsets are offsets in the output (but in a
    reduce-scatter: there the input is a copy, which may be overwritten). `packed` says that
    neighbouring blocks are neighbours in memory on every rank, so that a range of them can be one
    message.
    """

    lengths: Sequence[int] | Mapping[int, int]
    source: Mapping[int, int]
    target: Mapping[int, int]
    item_bytes: int
    in_place: bool = False
    packed: bool = True


@dataclass(frozen=True)
class Row:
    """One message or copy; the fields are the executor's R_ words."""

    kind: int
    peer: int
    count: int
    x: Place
    y: Place = (0, 0)
    z: Place = (0, 0)
    local_first: bool = False
    heads: bool = False

    def words(self) -> list[int]:
        place = (int(self.kind), self.peer, self.count, *self.x, *self.y, *self.z)
        return [*place, int(self.local_first), int(self.heads)]


@dataclass(frozen=True)
class Program:
    """What the executor needs of a lowered schedule."""

    rounds: tuple[tuple[Row, ...], ...]
    numbers: tuple[int, ...]  # for each round, the schedule's round that it comes from
    scratch_bytes: int  # of one lane


class _ScatteredError(Exception):
    """A range of blocks that must be one message lies in more than one place."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self.blocks = blocks


@dataclass
class _Lowering:
    schedule: Schedule
    layout: Layout
    segments: int
    longest: int  # elements of the longest row
    copied: set[int] = field(default_factory=set)  # blocks to copy home at the start
    displaced: set[int] = field(default_factory=set)  # output blocks with a home in the scratch

    def __post_init__(self) -> None:
        self.stage_bytes = 0
        self._lay_out()

    def _lay_out(self) -> None:
        """Give every block that this rank touches its home."""
        layout, item, self.home_bytes = self.layout, self.layout.item_bytes, 0
        region = OUTPUT if layout.in_place and not self._works_in_input else INPUT
        self.place = {block: (region, at * item) for block, at in layout.source.items()}
        self.home: dict[int, Place] = {}
        written = self.copied | {
            block
            for step in self.schedule.steps()
            if step.kind in RECEIVING
            for block in step.indices(self.schedule.blocks)
        }
        for block in sorted(written.union(layout.source, layout.target)):
            if self._works_in_input or block not in written.union(layout.target):
                self.home[block] = self.place[block]
            elif block in layout.target and block not in self.displaced:
                self.home[block] = (OUTPUT, layout.target[block] * item)
            else:
                self.home[block] = (SCRATCH, self.home_bytes)
                self.home_bytes += self._lane_bytes(layout.lengths[block])
        self.written = {b for b, place in self.place.items() if place == self.home[b]}

    @property
    def _works_in_input(self) -> bool:
        """The input is a copy that was made for this call, so all blocks may stay in it."""
        return self.layout.in_place and self.schedule.collective == "reduce_scatter"

    def _lane_bytes(self, count: int) -> int:
        """Scratch for one segment of `count` elements; exact where blocks must be neighbours."""
        if self.segments == 1:
            return count * self.layout.item_bytes
        # A segment's ends are rounded down to 16 elements, which can add 15 to its share.
        share = -(-count // self.segments) + 15
        return -(-share * self.layout.item_bytes // _LINE) * _LINE

    def lower(self) -> Program:
        rounds: list[tuple[Row, ...]] = []
        numbers: list[int] = []

        def emit(rows: Sequence[Row], number: int) -> None:
            if rows:
                rounds.append(tuple(rows))
                numbers.append(number)

        emit([self._copy_home(block) for block in sorted(self.copied)], 0)
        for number, steps in enumerate(self.schedule.rounds):
            emit(self._round(steps), number)
        emit(list(self._finish()), max(len(self.schedule.rounds) - 1, 0))
        stage_at = -(-self.home_bytes // _LINE) * _LINE
        moved = tuple(tuple(self._shift_stage(row, stage_at) for row in rows) for rows in rounds)
        return Program(moved, tuple(numbers), stage_at + self.stage_bytes)

    def _copy_home(self, block: int) -> Row:
        row = Row(COPY, -1, self.layout.lengths[block], self.place[block], self.home[block])
        self._write(block)
        return row

    def _write(self, block: int) -> None:
        self.place[block] = self.home[block]
        self.written.add(block)

    def _finish(self) -> Iterator[Row]:
        """Bring what belongs in the output there."""
        item = self.layout.item_bytes
        for block, at in self.layout.target.items():
            count = self.layout.lengths[block]
            there = (OUTPUT, at * item)
            # An empty block was never received, so it may have no place.
            if count and self.place[block] != there:
                yield Row(COPY, -1, count, self.place[block], there)

    def _shift_stage(self, row: Row, stage_at: int) -> Row:
        if row.x[0] != _STAGE:
            return row
        return replace(row, x=(SCRATCH, stage_at + row.x[1]))

    def _round(self, steps: Round) -> list[Row]:
        blocks = self.schedule.blocks
        sends = [s for s in steps if s.kind in SENDING]
        receives = [s for s in steps if s.kind in RECEIVING]
        # Receives that overwrite what is being sent finish after the sends. So do all later ones:
        # two from one peer must stay in their order.
        sent_from_home = {b for s in sends for b in s.indices(blocks) if b in self.written}
        first_late = next(
            (i for i, s in enumerate(receives) if sent_from_home.intersection(s.indices(blocks))),
            len(receives),
        )
        send_rows = [row for s in sends for row in self._rows(s)]
        self.staged = 0
        early = [row for s in receives[:first_late] for row in self._rows(s)]
        late = [row for s in receives[first_late:] for row in self._rows(s)]
        self.stage_bytes = max(self.stage_bytes, self.staged)
        return early + send_rows + late

    def _rows(self, step: Step) -> Iterator[Row]:
        if step.count == 0:
            kind = Kind.SEND if step.kind in SENDING else Kind.RECV
            yield Row(kind, step.peer, 0, (OUTPUT, 0), heads=True)
            return
        heads = True
        for first, count in self._pieces(step):
            row = self._row(step, range(first, first + count))
            for part in self._parts(row):
                yield replace(part, heads=heads)
                heads = False

    def _pieces(self, step: Step) -> Iterator[tuple[int, int]]:
        """The ranges of a step that are one row each."""
        lengths = self.layout.lengths
        for first, count in step.runs(self.schedule.blocks):
            if self.segments == 1 and self.layout.packed:
                if any(lengths[b] for b in range(first, first + count)):
                    yield first, count
            else:
                yield from ((b, 1) for b in range(first, first + count) if lengths[b])

    def _row(self, step: Step, blocks: range) -> Row:
        count = sum(self.layout.lengths[b] for b in blocks)
        if step.kind in SENDING:
            return Row(Kind.SEND, step.peer, count, self._joined(blocks, self.place))
        home = self._joined(blocks, self.home)
        if step.kind == Kind.RECV:
            for block in blocks:
                self._write(block)
            return Row(Kind.RECV, step.peer, count, home)
        local = self._joined(blocks, self.place)
        if self.written.isdisjoint(blocks):
            landing = home
        else:
            landing = (_STAGE, self.staged)
            self.staged += -(-self._lane_bytes(count) // _LINE) * _LINE
        for block in blocks:
            self._write(block)
        # Lower rank first: both ends of an exchange then compute the very same bits.
        first = self.schedule.rank < step.peer
        return Row(Kind.ADD, step.peer, count, landing, local, home, local_first=first)

    def _joined(self, blocks: range, places: Mapping[int, Place]) -> Place:
        """The place of a range that lies in one piece."""
        region, at = places[blocks[0]]
        expected = at
        for block in blocks:
            if places[block] != (region, expected):
                raise _ScatteredError(blocks)
            expected += self.layout.lengths[block] * self.layout.item_bytes
        return region, at

    def _parts(self, row: Row) -> Iterator[Row]:
        """A row that is too long for one MPI call as several."""
        # Segments are short enough, and their scratch is that of one segment, not of the row.
        if self.segments > 1 or row.count <= self.longest:
            yield row
            return
        for start in range(0, row.count, self.longest):
            shift = start * self.layout.item_bytes
            yield replace(
                row,
                count=min(self.longest, row.count - start),
                x=(row.x[0], row.x[1] + shift),
                y=(row.y[0], row.y[1] + shift),
                z=(row.z[0], row.z[1] + shift),
            )


_STAGE = -1  # the region of stages until it is known where in the scratch they begin


def lower(schedule: Schedule, layout: Layout, segments: int, longest: int) -> Program:
    """The executor's rows for one rank; `longest` is the most elements an MPI call may carry."""
    copied: set[int] = set()
    displaced: set[int] = set()
    while True:
        try:
            return _Lowering(schedule, layout, segments, longest, copied, displaced).lower()
        except _ScatteredError as scattered:
            # First bring unwritten blocks of the range home; if that is not enough, give the whole
            # range its home in the scratch.
            movable = set(layout.source).intersection(scattered.blocks) - copied
            if movable:
                copied |= movable
            elif displaced.issuperset(scattered.blocks):
                raise AssertionError(f"range {scattered.blocks} cannot be joined") from None
            else:
                displaced |= set(scattered.blocks)
