"""Turns the schedules of all ranks into pictures: a text table of states, and an SVG in space-time.

Both show what arrives where, by rounds on the critical path: the time of a message is the round in
which it is met when every message takes one round. The notation of a *cell*, which is what arrives
at one rank in one round:

    3       block 3 arrives and is stored
    3+      block 3 arrives and is added
    2-5     blocks 2 to 5, in one or more messages; cyclic, so 6-1 of 8 blocks is 6, 7, 0, 1
    3+x2    block 3 arrives from two ranks, and is added twice
    <3      an empty message from rank 3
    .       nothing
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from mpiopt.check import Message, trace
from mpiopt.schedule import Kind, Schedule

MOST_RUNS = 4  # a cell with more separate runs of blocks than this only counts them

ADD_COLOUR, COPY_COLOUR, SEAL_COLOUR = "#c2410c", "#1d4ed8", "#15803d"
INK, FAINT, BAND = "#1f2937", "#9ca3af", "#f3f4f6"
CHARACTER, ROW, PILL, LEFT, TOP, BOTTOM = 6.7, 40.0, 18.0, 72.0, 84.0, 50.0


def state_table(schedules: Sequence[Schedule]) -> str:
    """A row a round, a column a rank: what arrives there. The rules make it reStructuredText."""
    cells = _cells(trace(schedules), schedules[0].blocks)
    rounds = 1 + max((time for time, _ in cells), default=-1)
    ranks = range(len(schedules))
    rows = [["round", *map(str, ranks)]]
    rows += [[str(t), *(cells.get((t, rank), ".") for rank in ranks)] for t in range(rounds)]
    widths = [
        max(least, *map(len, column))
        for least, *column in zip([6] + [3] * len(ranks), *rows, strict=True)
    ]
    rule = "  ".join("=" * width for width in widths)
    # The word "round" is set to the left of its numbers, as a heading.
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    lines[0] = "round".ljust(widths[0]) + lines[0][widths[0] :]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def runs(members: Iterable[int], blocks: int) -> list[tuple[int, int]]:
    """Split a set of blocks into cyclic runs (first, last).

    >>> runs([0, 1, 3, 6, 7], 8)
    [(6, 1), (3, 3)]
    """
    found: list[tuple[int, int]] = []
    for block in sorted(members):
        if found and block == found[-1][1] + 1:
            found[-1] = (found[-1][0], block)
        else:
            found.append((block, block))
    if len(found) > 1 and found[0][0] == 0 and found[-1][1] == blocks - 1:
        found[0] = (found.pop()[0], found[0][1])
    return found


def _cells(messages: Iterable[Message], blocks: int) -> dict[tuple[int, int], str]:
    """What arrives, by (time, rank)."""
    arrivals: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages:
        if message.step.kind != Kind.SEAL:
            arrivals[message.time, message.target].append(message)
    return {place: ",".join(_notation(met, blocks)) for place, met in arrivals.items()}


def _notation(arrivals: list[Message], blocks: int) -> Iterator[str]:
    times: Counter[tuple[int, Kind]] = Counter()
    for message in arrivals:
        if message.step.count == 0:
            yield f"<{message.source}"
        times.update((block, message.step.kind) for block in message.step.indices(blocks or 1))
    alike: defaultdict[tuple[Kind, int], list[int]] = defaultdict(list)
    for (block, kind), count in times.items():
        alike[kind, count].append(block)
    for (kind, count), members in sorted(alike.items()):
        mark = ("+" if kind == Kind.ADD else "") + (f"x{count}" if count > 1 else "")
        found = runs(members, blocks)
        if len(found) > MOST_RUNS:
            yield f"{len(members)} blocks{mark}"
            continue
        for first, last in found:
            yield (f"{first}" if first == last else f"{first}-{last}") + mark


def svg(schedules: Sequence[Schedule]) -> str:
    """A space-time picture: ranks are lines, rounds are columns, messages are arrows.

    An arrow starts at its sender when the round starts and ends at a label on the receiver's line
    that says what has arrived there, so labels never overlap whatever the number of arrows.
    """
    plan, messages = schedules[0], trace(schedules)
    cells = _cells(messages, plan.blocks)
    rounds = 1 + max((time for time, _ in cells), default=-1)
    label = 14 + CHARACTER * max((len(text) for text in cells.values()), default=1)
    column = label + max(44.0, min(90.0, 640.0 / max(rounds, 1) - label, 5.0 * plan.size + 40.0))
    width = max(LEFT + rounds * column + 30, 470.0)
    height = TOP + plan.size * ROW + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="11">',
        f"<title>{escape(_title(plan, rounds))}</title>",
        "<defs>",
        *(_marker(name, colour) for name, colour in _ARROWS.values()),
        "</defs>",
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#ffffff"/>',
        _text(LEFT - 52, 28, _title(plan, rounds), size=14, weight="bold"),
        _text(LEFT - 52, 46, _subtitle(plan), colour="#6b7280"),
        *_frame(plan, rounds, column),
        *_arrows(messages, cells, column, plan.size),
        *_marks(messages, column),
        *_pills(messages, cells, column),
        *_legend(messages, height - 20),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


_ARROWS = {
    Kind.ADD: ("add", ADD_COLOUR),
    Kind.RECV: ("copy", COPY_COLOUR),
}


def _title(plan: Schedule, rounds: int) -> str:
    ranks = "rank" if plan.size == 1 else "ranks"
    unit = "round" if rounds == 1 else "rounds"
    return f"{plan.collective} {plan.algorithm}: {plan.size} {ranks}, {rounds} {unit}"


def _subtitle(plan: Schedule) -> str:
    parts = {0: "no data", 1: "the buffer is one block"}
    return parts.get(plan.blocks, f"the data is cut into {plan.blocks} blocks")


def _y(rank: int) -> float:
    return TOP + ROW * (rank + 0.5)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    colour: str = INK,
    anchor: str = "start",
    size: int = 11,
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
        f'font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
    )


def _marker(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0.5 L8 4 L0 7.5 z" fill="{colour}"/></marker>'
    )


def _frame(plan: Schedule, rounds: int, column: float) -> Iterator[str]:
    """Bands for the rounds with their numbers, and the ranks' lines with theirs."""
    for time in range(rounds):
        x = LEFT + time * column
        if time % 2 == 0:
            yield (
                f'<rect x="{x:.1f}" y="{TOP - 4:.1f}" width="{column:.1f}" '
                f'height="{plan.size * ROW + 8:.1f}" fill="{BAND}"/>'
            )
        yield _text(x + column / 2, TOP - 12, str(time), colour="#6b7280", anchor="middle")
    if rounds:
        yield _text(LEFT - 52, TOP - 12, "round", colour="#6b7280")
    for rank in range(plan.size):
        y = _y(rank)
        yield _text(LEFT - 52, y + 4, f"rank {rank}")
        yield (
            f'<line x1="{LEFT:.1f}" y1="{y:.1f}" x2="{LEFT + rounds * column + 12:.1f}" '
            f'y2="{y:.1f}" stroke="{FAINT}" stroke-width="1"/>'
        )


def _arrows(
    messages: list[Message], cells: dict[tuple[int, int], str], column: float, size: int
) -> Iterator[str]:
    """Arrows from the start of a round to the receiver's label; in a crowd, faint bare lines."""
    crowd = Counter(message.time for message in messages if message.step.kind in _ARROWS)
    for time, source, target, step in messages:
        if step.kind not in _ARROWS:
            continue
        name, colour = _ARROWS[step.kind]
        crowded = crowd[time] > 4 * size
        head = "" if crowded else f' marker-end="url(#{name})"'
        x, tip = LEFT + time * column + 10, _label_left(time, cells[time, target], column) - 2
        yield (
            f'<line x1="{x:.1f}" y1="{_y(source):.1f}" x2="{tip:.1f}" y2="{_y(target):.1f}" '
            f'stroke="{colour}" stroke-width="1.3" stroke-opacity="{0.3 if crowded else 1}"{head}/>'
        )
        yield f'<circle cx="{x:.1f}" cy="{_y(source):.1f}" r="2.6" fill="{colour}"/>'


def _label_left(time: int, text: str, column: float) -> float:
    return LEFT + (time + 1) * column - 6 - (8 + CHARACTER * len(text))


def _pills(
    messages: list[Message], cells: dict[tuple[int, int], str], column: float
) -> Iterator[str]:
    """The labels, at the ends of the rounds."""
    kinds = {(m.time, m.target): m.step.kind for m in messages if m.step.kind in _ARROWS}
    for (time, rank), text in cells.items():
        colour = _ARROWS[kinds[time, rank]][1]
        x, y, width = _label_left(time, text, column), _y(rank), 8 + CHARACTER * len(text)
        yield (
            f'<rect x="{x:.1f}" y="{y - PILL / 2:.1f}" width="{width:.1f}" '
            f'height="{PILL:.0f}" rx="5" fill="#ffffff" stroke="{colour}"/>'
        )
        yield _text(x + width / 2, y + 4, text, colour=colour, anchor="middle")


def _marks(messages: list[Message], column: float) -> Iterator[str]:
    """A diamond where a rank seals a finished block, at the border between two rounds."""
    for time, rank in sorted({(m.time, m.source) for m in messages if m.step.kind == Kind.SEAL}):
        yield _diamond(LEFT + time * column, _y(rank))


def _diamond(x: float, y: float) -> str:
    return (
        f'<path d="M{x - 5:.1f} {y:.1f} L{x:.1f} {y - 5:.1f} L{x + 5:.1f} {y:.1f} '
        f'L{x:.1f} {y + 5:.1f} z" fill="{SEAL_COLOUR}"/>'
    )


def _legend(messages: list[Message], y: float) -> Iterator[str]:
    """What the colours mean, for the kinds that occur."""
    kinds, x = {message.step.kind for message in messages}, LEFT - 52
    words = {Kind.ADD: "arrives, is added", Kind.RECV: "arrives, is stored", Kind.SEAL: "sealed"}
    for kind, word in words.items():
        if kind not in kinds:
            continue
        if kind == Kind.SEAL:
            x -= 14
            yield _diamond(x + 19, y - 4)
        else:
            name, colour = _ARROWS[kind]
            yield (
                f'<line x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x + 24:.1f}" y2="{y - 4:.1f}" '
                f'stroke="{colour}" stroke-width="1.3" marker-end="url(#{name})"/>'
            )
        yield _text(x + 32, y, word)
        x += 32 + CHARACTER * len(word) + 24
