"""Laws of the documentation: page, docstrings and formulas say what the schedules do."""

from __future__ import annotations

import inspect
import re
from fractions import Fraction
from pathlib import Path

import pytest

from mpiopt.algorithms import algorithms
from mpiopt.algorithms.doc import BUFFERS, ENTRIES, HEAD, counts, document, lossy, plans
from mpiopt.algorithms.registry import _find
from mpiopt.draw import state_table
from mpiopt.schedule import COLLECTIVES

EVERY = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def symbols(size: int) -> dict[str, object]:
    """P, L, F, E, S, H from their definitions, by counting rather than by logarithms."""
    low = max(k for k in range(size) if 2**k <= size)
    high = next(k for k in range(size) if 2**k >= size)
    extra = size - 2**low
    heads = [v for v in range(1, size) if v & (v - 1) == 0]
    below = [min(v, size - v) for v in heads]
    return {
        "P": Fraction(size),
        "L": high,
        "F": low,
        "E": extra,
        "S": sum(min(2**j, extra) for j in range(low)),
        "H": max(below, default=0),
        "min": min,
        "max": max,
    }


def value(formula: str, size: int) -> Fraction:
    """Evaluate a formula of the page: [condition] is 1 or 0, the dot multiplies, ^ is a power."""
    code = re.sub(r" = ", " == ", formula).replace("·", "*").replace("^", "**")
    result = eval(code.replace("[", "(").replace("]", ")"), {"__builtins__": {}}, symbols(size))
    return Fraction(result)


def test_the_page_is_what_the_schedules_generate() -> None:
    assert PAGE.read_text(encoding="utf-8") == document()


def test_every_algorithm_and_collective_has_its_entry() -> None:
    assert set(ENTRIES) == set(EVERY)
    assert set(BUFFERS) == set(COLLECTIVES)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_closed_formulas_and_schedules_count_the_same(collective: str, algorithm: str) -> None:
    entry = ENTRIES[collective, algorithm]
    for size in range(1, 34):
        formulas = [value(text, size) for text in (entry.rounds, entry.messages, entry.sent)]
        assert formulas == list(counts(collective, algorithm, size)), size


@pytest.mark.parametrize(("symbol", "row"), re.findall(r"^\| (\w) \| .*\| (.*) \|$", HEAD, re.M))
def test_the_symbols_have_the_values_that_the_page_gives(symbol: str, row: str) -> None:
    assert row == f"{symbols(5)[symbol]}, {symbols(8)[symbol]}"


def test_the_closed_form_of_the_largest_subtree_holds() -> None:
    text = re.search(r"^\| H \| (\S.*?), the largest", HEAD, re.M)
    assert text
    for size in range(1, 200):
        assert value(text[1].replace("(L-1)", "(L - 1)"), size) == symbols(size)["H"]


@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_tables_in_docstrings_are_the_schedules(collective: str, algorithm: str) -> None:
    text = inspect.getdoc(_find(collective, algorithm)[0]) or ""
    tables = re.findall(r"^=+  .*?\n(?:.*\n)*?=.*\n(?:.*\n)*?=.*$", text, re.M)
    assert tables == [state_table(plans(collective, algorithm, 4))]


def test_only_recursive_doubling_minds_a_lossy_codec() -> None:
    assert [key for key in EVERY if not lossy(*key)] == [("allreduce", "recursive_doubling")]


def test_a_fold_never_costs_a_host_more_than_the_page_says() -> None:
    halving, doubling = (
        ENTRIES["allreduce", "recursive_halving"],
        ENTRIES["allgather", "recursive_doubling"],
    )
    sizes = range(2, 1100)
    assert "17/5" in halving.limits
    assert "12/5" in doubling.limits
    for entry, least, most in ((halving, 3, Fraction(17, 5)), (doubling, 2, Fraction(12, 5))):
        assert least < max(value(entry.sent, size) for size in sizes) < most
