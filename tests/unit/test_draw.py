"""Laws of the pictures: every message is drawn once, nothing overlaps, the XML is well formed."""

from __future__ import annotations

import doctest
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import pytest

import mpiopt.draw
from mpiopt.algorithms import algorithms, schedule
from mpiopt.check import trace
from mpiopt.draw import runs, state_table, svg
from mpiopt.schedule import COLLECTIVES, Kind, Schedule

EVERY = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
NAME = "{http://www.w3.org/2000/svg}"


def plans(collective: str, algorithm: str, size: int) -> list[Schedule]:
    return [schedule(collective, algorithm, size, rank) for rank in range(size)]


def numbers(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.attrib[name]) for name in names]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(mpiopt.draw).failed == 0


@pytest.mark.parametrize(
    ("members", "blocks", "expected"),
    [
        ([], 4, []),
        ([2], 4, [(2, 2)]),
        ([0, 1, 2, 3], 4, [(0, 3)]),
        ([3, 0], 4, [(3, 0)]),
        ([0, 2], 4, [(0, 0), (2, 2)]),
    ],
)
def test_runs_are_the_longest_cyclic_ranges(
    members: list[int], blocks: int, expected: list[tuple[int, int]]
) -> None:
    assert runs(members, blocks) == expected


def test_the_state_table_says_what_arrives_where() -> None:
    assert state_table(plans("reduce_scatter", "ring", 3)).splitlines() == [
        "======  ===  ===  ===",
        "round     0    1    2",
        "======  ===  ===  ===",
        "     0   1+   2+   0+",
        "     1   0+   1+   2+",
        "======  ===  ===  ===",
    ]


def test_the_state_table_has_a_notation_for_ranges_crowds_signals_and_nothing() -> None:
    assert "2-0" in state_table(plans("allgather", "direct", 4))
    assert "3+x4" in state_table(plans("reduce_scatter", "two_shot", 5))
    assert "7 blocks" in state_table(plans("alltoall", "direct", 8))
    assert state_table(plans("barrier", "dissemination", 2)).splitlines()[3].split() == [
        "0",
        "<1",
        "<0",
    ]
    row = state_table(plans("bcast", "binomial_tree", 4)).splitlines()[3]
    assert row.split() == ["0", ".", ".", "0", "."]


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_the_state_table_is_as_long_as_the_critical_path(collective: str, algorithm: str) -> None:
    for size in (1, 2, 5, 8):
        every = plans(collective, algorithm, size)
        times = [m.time for m in trace(every) if m.step.kind != Kind.SEAL]
        table = state_table(every).splitlines()
        assert len(table) - 4 == 1 + max(times, default=-1)
        assert len({len(line) for line in table}) == 1


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_the_picture_has_an_arrow_a_message_between_its_ranks(
    collective: str, algorithm: str, size: int
) -> None:
    every = plans(collective, algorithm, size)
    root = ElementTree.fromstring(svg(every))
    lines = [numbers(e, "y1", "y2") for e in root.iter(NAME + "line") if e.get("stroke-opacity")]
    level = {
        text.text: float(text.attrib["y"]) - 4
        for text in root.iter(NAME + "text")
        if (text.text or "").startswith("rank ")
    }
    assert len(level) == size
    drawn = sorted((y1, y2) for y1, y2 in lines)
    messages = [m for m in trace(every) if m.step.kind != Kind.SEAL]
    assert drawn == sorted((level[f"rank {m.source}"], level[f"rank {m.target}"]) for m in messages)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
@pytest.mark.parametrize("size", [1, 4, 6, 16])
def test_labels_neither_overlap_nor_leave_the_picture(
    collective: str, algorithm: str, size: int
) -> None:
    root = ElementTree.fromstring(svg(plans(collective, algorithm, size)))
    width, height = numbers(root, "width", "height")
    labels = [
        numbers(e, "x", "y", "width", "height") for e in root.iter(NAME + "rect") if e.get("stroke")
    ]
    assert bool(labels) == (size > 1)
    assert all(x > 0 and y > 0 and x + w < width and y + h < height for x, y, w, h in labels)
    for (x, y, w, h), (u, v, s, t) in combinations(labels, 2):
        assert x + w <= u or u + s <= x or y + h <= v or v + t <= y
    for text in root.iter(NAME + "text"):
        start, size_px = numbers(text, "x", "font-size")
        if text.attrib["text-anchor"] == "start":
            assert start + 0.61 * size_px * len(text.text or "") < width


def test_additions_and_copies_differ_in_colour_and_the_legend_names_what_occurs() -> None:
    def words(collective: str, algorithm: str) -> str:
        root = ElementTree.fromstring(svg(plans(collective, algorithm, 4)))
        return " ".join(text.text or "" for text in root.iter(NAME + "text"))

    both, adds, copies = (
        words("allreduce", "ring"),
        words("reduce_scatter", "ring"),
        words("allgather", "ring"),
    )
    assert "is added" in both
    assert "is stored" in both
    assert "is stored" not in adds
    assert "is added" not in copies
    root = ElementTree.fromstring(svg(plans("allreduce", "ring", 4)))
    colours = {e.attrib["stroke"] for e in root.iter(NAME + "line") if e.get("stroke-opacity")}
    assert colours == {mpiopt.draw.ADD_COLOUR, mpiopt.draw.COPY_COLOUR}


def test_names_are_escaped() -> None:
    every = [replace(p, algorithm='<a & "b">') for p in plans("allgather", "ring", 2)]
    root = ElementTree.fromstring(svg(every))
    title = root.find(NAME + "title")
    assert title is not None
    assert title.text == 'allgather <a & "b">: 2 ranks, 1 round'
