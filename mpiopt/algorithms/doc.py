"""Turns the registered schedules into docs/algorithms.md: counts, closed formulas, state tables.

Run as `python -m mpiopt.algorithms.doc > docs/algorithms.md`. The counts come from the schedules,
the formulas are written by hand, and a test holds them against each other for 1 to 33 ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from mpiopt.algorithms import schedule
from mpiopt.check import ScheduleError, prove, trace
from mpiopt.draw import state_table
from mpiopt.schedule import COLLECTIVES, Kind, Schedule

SIZES = (2, 4, 8, 5, 16)

BUFFERS = {
    "allreduce": "n is the vector that every rank contributes and every rank gets.",
    "reduce": "n is the vector that every rank contributes and the root gets.",
    "reduce_scatter": "n is the vector that every rank contributes; rank i gets block i, n/P.",
    "bcast": "n is the root's buffer, which every rank gets.",
    "allgather": "n is the result, which every rank gets; each contributes a block, n/P of it.",
    "gather": "n is the result, which the root gets; each rank contributes a block, n/P of it.",
    "scatter": "n is the root's buffer; rank i gets block i, n/P of it.",
    "alltoall": "n is what one rank has for all ranks, itself included: P of the P² blocks.",
    "barrier": "There is no data.",
}


class Entry(NamedTuple):
    """Closed formulas in P, L, F, E, S, H (the largest over the ranks), use and limits."""

    rounds: str
    messages: str
    sent: str
    use: str
    limits: str


class Counts(NamedTuple):
    """Rounds on the critical path, and the most messages and the most of n that a rank sends."""

    rounds: int
    messages: int
    sent: Fraction


_SHARE = "(P - 1)/P"
_HALVING = "([E = 0]·2·(P - 1) + [E > 0]·(2·P - 3 + 2^F + S))/P"
_DOUBLING = "(2^F - 1 + S + [E > 0]·(P - 1))/P"

ENTRIES = {
    ("allreduce", "ring"): Entry(
        "2·(P - 1)", "2·(P - 1)", "2·(P - 1)/P",
        "long vectors: least data, neighbours only",
        "rounds grow with P; a codec requantises at every hop of the first half",
    ),
    ("allreduce", "binomial_tree"): Entry(
        "2·L", "L", "L",
        "a baseline; short vectors where few messages matter",
        "the whole vector in each round",
    ),
    ("allreduce", "double_tree"): Entry(
        "2·F", "[P > 1]·min(P, 4)", "[P > 1]·min(P, 4)/2",
        "middle and long vectors on many ranks: logarithmic, at most 2n sent",
        "a codec requantises at every level on the way up",
    ),
    ("allreduce", "recursive_doubling"): Entry(
        "F + 2·[E > 0]", "F + [E > 0]", "F + [E > 0]",
        "short vectors: few rounds with one message each",
        "the whole vector in each round; exact data, or codes that add, only",
    ),
    ("allreduce", "recursive_halving"): Entry(
        "2·F + 2·[E > 0]", "2·F + [E > 0]", _HALVING,
        "middle and long vectors, P a power of two: few rounds and least data",
        "other P cost two rounds, and hosts send up to 17/5 n",
    ),
    ("allreduce", "two_shot"): Entry(
        "2·[P > 1]", "2·(P - 1)", "2·(P - 1)/P",
        "with a codec (two quantisations whatever P); few ranks; one node",
        "P - 1 messages at once into each rank",
    ),
    ("reduce", "binomial_tree"): Entry(
        "L", "[P > 1]", "[P > 1]",
        "short vectors",
        "the root receives the vector L times",
    ),
    ("reduce", "double_tree"): Entry(
        "L", "2·[P > 1]", "[P > 1]",
        "middle and long vectors: no rank receives more than n",
        "a codec requantises at every level",
    ),
    ("reduce", "reduce_scatter_gather"): Entry(
        "P - 1 + L", "P·[P > 1]", "(P - 1 + H)/P",
        "long vectors, when addition is what takes time: it is shared by all ranks",
        "rounds grow with P",
    ),
    ("reduce_scatter", "ring"): Entry(
        "P - 1", "P - 1", _SHARE,
        "long vectors: neighbours only",
        "rounds grow with P; a codec requantises at every hop",
    ),
    ("reduce_scatter", "recursive_halving"): Entry(
        "F + 2·[E > 0]", "F + [E > 0]", "[E > 0] + [E = 0]·(P - 1)/P",
        "short and middle vectors, P a power of two",
        "other P cost two rounds, and hosts receive n more",
    ),
    ("reduce_scatter", "two_shot"): Entry(
        "[P > 1]", "P - 1", _SHARE,
        "with a codec (one quantisation); few ranks; one node",
        "P - 1 messages at once into each rank",
    ),
    ("bcast", "binomial_tree"): Entry(
        "L", "L", "L",
        "short buffers: fewest rounds",
        "the root sends the buffer L times",
    ),
    ("bcast", "double_tree"): Entry(
        "L", "2·[P > 1]", "[P > 1]",
        "middle and long buffers: no rank sends more than n",
        "two messages a rank, each n/2",
    ),
    ("bcast", "scatter_allgather"): Entry(
        "L + P - 1", "L + P - 1", "2·(P - 1)/P",
        "long buffers that cannot be pipelined",
        "rounds grow with P",
    ),
    ("allgather", "ring"): Entry(
        "P - 1", "P - 1", _SHARE,
        "long blocks: neighbours only",
        "rounds grow with P",
    ),
    ("allgather", "recursive_doubling"): Entry(
        "F + 2·[E > 0]", "F + [E > 0]", _DOUBLING,
        "short blocks, P a power of two; unlike bruck, peers exchange in pairs",
        "other P cost two rounds, and hosts send up to 12/5 n",
    ),
    ("allgather", "bruck"): Entry(
        "L", "L", _SHARE,
        "short blocks, any P: fewest rounds and least data",
        "distant peers carry the most data",
    ),
    ("allgather", "direct"): Entry(
        "[P > 1]", "P - 1", _SHARE,
        "few ranks; one node",
        "P - 1 messages at once into each rank",
    ),
    ("gather", "binomial_tree"): Entry(
        "L", "[P > 1]", "H/P",
        "short blocks, many ranks",
        "blocks pass through other ranks, which need room for their subtree",
    ),
    ("gather", "direct"): Entry(
        "[P > 1]", "[P > 1]", "[P > 1]/P",
        "long blocks, few ranks",
        "the root receives P - 1 messages at once",
    ),
    ("scatter", "binomial_tree"): Entry(
        "L", "L", _SHARE,
        "short blocks, many ranks",
        "blocks pass through other ranks, which need room for their subtree",
    ),
    ("scatter", "direct"): Entry(
        "[P > 1]", "P - 1", _SHARE,
        "long blocks, few ranks",
        "the root sends P - 1 messages at once",
    ),
    ("alltoall", "pairwise"): Entry(
        "P - 1", "P - 1", _SHARE,
        "long blocks, many ranks: one message a rank at a time",
        "rounds grow with P, and the slowest pair holds up its neighbours",
    ),
    ("alltoall", "direct"): Entry(
        "[P > 1]", "P - 1", _SHARE,
        "short blocks, few ranks",
        "P - 1 messages at once into each rank",
    ),
    ("barrier", "dissemination"): Entry(
        "L", "L", "0",
        "always: fewest rounds",
        "P L messages in all",
    ),
}  # fmt: skip

HEAD = """\
# Algorithms

Generated from the schedules by `python -m mpiopt.algorithms.doc > docs/algorithms.md`; do not edit.

P is the number of ranks, n the buffer, defined for each collective below. *Rounds* is the length of
the critical path when every message takes one round, however many messages a rank has in a round.
*Messages* and *sent* are the most that any one rank sends, and sent is a part of n. The formulas
use

| symbol | is | at P = 5, 8 |
|---|---|---|
| L | ceil(log2 P) | 3, 3 |
| F | floor(log2 P) | 2, 3 |
| E | P - 2^F, the ranks beyond a power of two | 1, 0 |
| S | the sum of min(2^j, E) over j = 0 ... F - 1, the extra blocks that doubling moves | 2, 0 |
| H | [P > 1]·max(P - 2^(L-1), 2^(L-2)), the largest subtree below a binomial root | 2, 4 |
| [...] | 1 where the condition holds, else 0 | |

In the state tables rows are rounds and columns are ranks, and an entry says what arrives: `3` block
3, stored; `3+` block 3, added; `2-5` the blocks 2 to 5, cyclic, so that `6-1` of 8 blocks is 6, 7,
0, 1; `3+x2` block 3, added from two ranks; `<3` an empty message from rank 3; `.` nothing. Rooted
collectives are shown with root 0. *Lossy* says whether a lossy codec leaves the same bits on all
ranks; with exact data every algorithm does.
"""


def plans(collective: str, algorithm: str, size: int) -> list[Schedule]:
    """All ranks' schedules, root 0."""
    return [schedule(collective, algorithm, size, rank) for rank in range(size)]


def counts(collective: str, algorithm: str, size: int) -> Counts:
    """Count what the schedules do on `size` ranks."""
    every = plans(collective, algorithm, size)
    rounds = max((m.time + 1 for m in trace(every) if m.step.kind != Kind.SEAL), default=0)
    # An all-to-all numbers the blocks of all ranks; one rank's buffer is `size` of them.
    buffer = size if collective == "alltoall" else max(every[0].blocks, 1)
    sent = max(plan.sent([1] * plan.blocks) for plan in every)
    return Counts(rounds, max(plan.messages for plan in every), Fraction(sent, buffer))


def lossy(collective: str, algorithm: str) -> bool:
    """Whether all ranks end with the same bits under a lossy codec, at a size with all cases."""
    try:
        prove(collective, algorithm, 5, codec=True)
    except ScheduleError:
        return False
    return True


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _section(collective: str) -> Iterator[str]:
    names = [name for owner, name in ENTRIES if owner == collective]
    yield f"\n## {collective}\n\n{BUFFERS[collective]}\n"
    yield _row("algorithm", "rounds", "messages", "sent / n", "lossy")
    yield "|---|---|---|---|---|"
    for name in names:
        entry, same = ENTRIES[collective, name], "yes" if lossy(collective, name) else "no"
        yield _row(f"`{name}`", entry.rounds, entry.messages, entry.sent, same)
    yield "\nCounted in the schedules: rounds, messages, sent / n.\n"
    yield _row("algorithm", *(f"P = {size}" for size in SIZES))
    yield "|---" * (1 + len(SIZES)) + "|"
    for name in names:
        found = [counts(collective, name, size) for size in SIZES]
        yield _row(f"`{name}`", *(f"{c.rounds}, {c.messages}, {c.sent}" for c in found))
    yield "\n" + _row("algorithm", "when to use", "limits") + "\n|---|---|---|"
    for name in names:
        yield _row(f"`{name}`", ENTRIES[collective, name].use, ENTRIES[collective, name].limits)
    for name in names:
        yield f"\n`{name}`, P = 4:\n\n```\n{state_table(plans(collective, name, 4))}\n```"


def document() -> str:
    """The text of docs/algorithms.md."""
    lines = [HEAD.rstrip("\n")]
    for collective in COLLECTIVES:
        lines += _section(collective)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
