"""Turns the schedules of all ranks into a proof, or into an error that names rank, round and block.

Vocabulary. The *value* of a block on a rank is the set of ranks whose contribution it holds, as a
bit mask; no bit means undefined. A *message* is a sending step and the receiving step it meets.

The ranks run, without MPI and without data, under the strictest rules that MPI allows: a round
posts all its steps, a send ends only when its receive is posted, and messages between two ranks
are met in order. No receive has a choice of sender, and no round may write what it reads, so there
is one outcome whatever the speed of the ranks: what holds in this one run holds in every run, and
less strict sends only remove waiting.

Proved: every send has its receive, for the same blocks; no rank waits for ever; nothing undefined
is sent; no contribution is counted twice; every output is complete; after a barrier every rank has
heard of every rank. And, apart from that, whether a lossy codec leaves the same bits everywhere:
a block that is passed on was sealed first, and all its copies descend from one seal.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple, NoReturn

from mpiopt.algorithms import algorithms, schedule
from mpiopt.schedule import (
    COLLECTIVES,
    RECEIVING,
    REDUCING,
    ROOTED,
    SENDING,
    Kind,
    Schedule,
    Step,
    inputs,
    outputs,
)


class ScheduleError(ValueError):
    """A schedule breaks a law; `block` is None where no block is concerned."""

    def __init__(self, plan: Schedule, round_: int, block: int | None, what: str) -> None:
        self.rank, self.round, self.block = plan.rank, round_, block
        place = f"rank {plan.rank}, round {round_}" + ("" if block is None else f", block {block}")
        super().__init__(f"{plan.collective} {plan.algorithm}, size {plan.size}: {place}: {what}")


class Message(NamedTuple):
    """A message that was met, or a seal; `time` counts rounds when every message takes one."""

    time: int
    source: int
    target: int
    step: Step


class Posted(NamedTuple):
    """A step that a rank has started; a send carries its values and what the rank has heard of."""

    rank: int
    round: int
    step: Step
    values: list[int]
    heard: int


class Proof(NamedTuple):
    """A row of the proof table; `codec` says that a lossy codec, too, leaves all ranks the same."""

    collective: str
    algorithm: str
    sizes: str
    roots: str
    proofs: int
    seconds: float
    codec: bool


def check(schedules: Sequence[Schedule], codec: bool = False) -> None:
    """Raise ScheduleError unless the schedules, of ranks 0, 1, ..., do what their collective says.

    With `codec`, passing on a block that nobody sealed, and copies with different seals, are errors
    as well; exact data does not mind them.
    """
    error = _Run(schedules).execute()
    if codec and error:
        raise error


def trace(schedules: Sequence[Schedule]) -> list[Message]:
    """Prove the schedules and return their messages and seals, in order of time and rank."""
    run = _Run(schedules)
    run.execute()
    return sorted(run.messages, key=lambda m: (m.time, m.source, m.target))


def prove(collective: str, algorithm: str, size: int, root: int = 0, codec: bool = False) -> None:
    """Check an algorithm at one size and, where the collective has one, one root."""
    check(_build(collective, algorithm, size, root), codec)


def prove_all(max_size: int = 33, progress: Callable[[Proof], None] | None = None) -> list[Proof]:
    """Check every algorithm at the sizes 1..max_size and every root; report each row when done."""
    rows = []
    for collective, algorithm in [(c, a) for c in COLLECTIVES for a in algorithms(c)]:
        began, proofs, codec = perf_counter(), 0, True
        rooted = collective in ROOTED
        for size in range(1, max_size + 1):
            for root in range(size if rooted else 1):
                codec &= _Run(_build(collective, algorithm, size, root)).execute() is None
                proofs += 1
        sizes, roots = f"1-{max_size}", "all" if rooted else "-"
        seconds = perf_counter() - began
        rows.append(Proof(collective, algorithm, sizes, roots, proofs, seconds, codec))
        if progress:
            progress(rows[-1])
    return rows


def _build(collective: str, algorithm: str, size: int, root: int) -> list[Schedule]:
    # Not through the cache: a proof uses each schedule once and would push out those in use.
    build = schedule.__wrapped__
    return [build(collective, algorithm, size, rank, root) for rank in range(size)]


@lru_cache(maxsize=1 << 14)
def _mask(first: int, count: int, blocks: int) -> int:
    return sum(1 << (first + i) % blocks for i in range(count))


def _members(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _ranks(mask: int) -> str:
    return "rank " + ", ".join(map(str, _members(mask))) if mask else "nobody"


def _range(step: Step) -> str:
    if step.count == 0:
        return "a signal"
    end = f"-{step.first + step.count - 1}" if step.count > 1 else ""
    return f"block{'s' if end else ''} {step.first}{end}"


class _Run:
    """All ranks side by side. A value is `contributions | (sealer + 1) << size`."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.plans = schedules
        self.size, self.blocks = len(schedules), schedules[0].blocks
        self.full = (1 << self.size) - 1
        self.barrier = schedules[0].collective == "barrier"
        self.values = [self._initial(rank, plan) for rank, plan in enumerate(schedules)]
        self.heard = [1 << rank for rank in range(self.size)]
        self.round = [-1] * self.size
        self.pending = [0] * self.size
        self.start = [0] * self.size
        self.finish = [0] * self.size
        self.sends: defaultdict[tuple[int, int], deque[Posted]] = defaultdict(deque)
        self.receives: defaultdict[tuple[int, int], deque[Posted]] = defaultdict(deque)
        self.ready = deque(range(self.size))
        self.messages: list[Message] = []
        self.codec_error: ScheduleError | None = None

    def _initial(self, rank: int, plan: Schedule) -> list[int]:
        first = self.plans[0]
        same = (plan.collective, plan.algorithm, plan.root, plan.blocks) == (
            (first.collective, first.algorithm, first.root, first.blocks)
        )
        if plan.rank != rank or plan.size != self.size or not same:
            self._fail(rank, 0, None, f"is not rank {rank} of {self.size} of the same collective")
        values = [0] * self.blocks
        for block in inputs(plan.collective, plan.size, rank, plan.root, plan.blocks):
            values[block] = 1 << rank
        return values

    def execute(self) -> ScheduleError | None:
        """Run to the end; raise what is wrong, return what is wrong only with a lossy codec."""
        while self.ready:
            rank = self.ready.popleft()
            self.start[rank] = self.finish[rank]
            self.round[rank] += 1
            if self.round[rank] < len(self.plans[rank].rounds):
                self._post(rank)
        self._finished()
        self._verify()
        return self.codec_error

    def _post(self, rank: int) -> None:
        """Start a round: sends first, since they carry the values from before its additions."""
        now, steps = self.round[rank], self.plans[rank].rounds[self.round[rank]]
        self._validate(rank, now, steps)
        # One more than the steps, so that the round cannot end while it is being posted.
        self.pending[rank] = 1 + sum(step.kind != Kind.SEAL for step in steps)
        for step in steps:
            if step.kind in SENDING:
                values = self._outgoing(rank, now, step)
                send = Posted(rank, now, step, values, self.heard[rank])
                waiting = self.receives[rank, step.peer]
                if waiting:
                    self._deliver(send, waiting.popleft())
                else:
                    self.sends[rank, step.peer].append(send)
        for step in steps:
            if step.kind in RECEIVING:
                receive = Posted(rank, now, step, [], 0)
                sent = self.sends[step.peer, rank]
                if sent:
                    self._deliver(sent.popleft(), receive)
                else:
                    self.receives[step.peer, rank].append(receive)
            elif step.kind == Kind.SEAL:
                self._seal(rank, now, step)
        self._done(rank)

    def _done(self, rank: int) -> None:
        self.pending[rank] -= 1
        if not self.pending[rank]:
            self.ready.append(rank)

    def _validate(self, rank: int, now: int, steps: tuple[Step, ...]) -> None:
        """Reject steps that make no sense alone, and rounds that write what they use."""
        used = written = added = sealed = 0
        for step in steps:
            kind, peer, first, count = step.kind, step.peer, step.first, step.count
            if kind != Kind.SEAL and (not 0 <= peer < self.size or peer == rank):
                self._fail(rank, now, first, f"peer {peer} is not another rank of {self.size}")
            if self.barrier:
                if count or kind == Kind.SEAL:
                    self._fail(rank, now, first, "a barrier has no blocks")
                continue
            if not 0 <= first < self.blocks or not 0 < count <= self.blocks:
                self._fail(rank, now, first, f"{_range(step)} of {self.blocks} blocks")
            mask = _mask(first, count, self.blocks)
            clash = 0
            if kind == Kind.RECV:
                clash, written = mask & (written | added), written | mask
            elif kind == Kind.ADD:
                clash, added = mask & written, added | mask
            elif kind == Kind.SEAL:
                sealed |= mask
            else:
                used |= mask
            if clash:
                block = _members(clash)[0]
                self._fail(rank, now, block, "race: received twice in a round")
        if clash := written & used:
            block = _members(clash)[0]
            self._fail(rank, now, block, "race: received and sent in the same round")
        if clash := sealed & (used | written | added):
            block = _members(clash)[0]
            self._fail(rank, now, block, "race: sealed and sent or received in the same round")

    def _outgoing(self, rank: int, now: int, step: Step) -> list[int]:
        """The values that a step sends; the seal goes with what is forwarded, not with a send."""
        held, first, stop = self.values[rank], step.first, step.first + step.count
        values = (
            held[first:stop] if stop <= self.blocks else held[first:] + held[: stop % self.blocks]
        )
        if 0 in values:
            block = (first + values.index(0)) % self.blocks
            self._fail(rank, now, block, f"undefined, but sent to rank {step.peer}")
        if step.kind == Kind.SEND:
            return [value & self.full for value in values]
        if not self.codec_error and min(values, default=self.full + 1) <= self.full:
            self._note(rank, now, first, f"sends {_range(step)} as sealed bytes, not all sealed")
        return values

    def _deliver(self, send: Posted, receive: Posted) -> None:
        """Let a message arrive."""
        source, target, step = send.rank, receive.rank, receive.step
        if (send.step.first, send.step.count) != (step.first, step.count):
            what = (
                f"expects {_range(step)} from rank {source}, which in round {send.round} "
                f"sends {_range(send.step)}"
            )
            self._fail(target, receive.round, step.first, what)
        held, block = self.values[target], step.first
        for value in send.values:
            if step.kind == Kind.ADD:
                value = self._sum(held[block], value & self.full, block, send, receive)
            held[block] = value
            block += 1
            if block == self.blocks:
                block = 0
        self.heard[target] |= send.heard
        time = max(self.start[source], self.start[target])
        self.messages.append(Message(time, source, target, step))
        for rank in (source, target):
            if self.finish[rank] <= time:
                self.finish[rank] = time + 1
            self._done(rank)

    def _sum(self, value: int, arriving: int, block: int, send: Posted, receive: Posted) -> int:
        value &= self.full
        where = (receive.rank, receive.round, block)
        if not value:
            self._fail(*where, f"undefined, but rank {send.rank} adds to it")
        if value & arriving:
            twice = _ranks(value & arriving)
            self._fail(*where, f"contribution of {twice} counted twice, from rank {send.rank}")
        return value | arriving

    def _seal(self, rank: int, now: int, step: Step) -> None:
        held = self.values[rank]
        for block in step.indices(self.blocks):
            if not held[block]:
                self._fail(rank, now, block, "undefined, but sealed")
            held[block] = held[block] & self.full | rank + 1 << self.size
        self.messages.append(Message(self.start[rank], rank, rank, step))

    def _waiting(self) -> Iterator[tuple[Posted, int]]:
        """The steps that nobody met, each with the rank it waits for."""
        for (_, target), sends in self.sends.items():
            yield from ((send, target) for send in sends)
        for (source, _), receives in self.receives.items():
            yield from ((receive, source) for receive in receives)

    def _finished(self) -> None:
        """Explain a standstill: by a step whose peer is done, else by a circle of ranks."""
        first: dict[int, tuple[Posted, int]] = {}
        for step, peer in sorted(self._waiting(), key=lambda w: (w[0].rank, w[0].step.kind)):
            if self.round[peer] == len(self.plans[peer].rounds):
                self._deadlock(step, f"{self._wait(step, peer)}; rank {peer} has finished")
            first.setdefault(step.rank, (step, peer))
        if not first:
            return
        rank, path = min(first), list[int]()
        while rank not in path:
            path.append(rank)
            rank = first[rank][1]
        circle = path[path.index(rank) :]
        self._deadlock(first[rank][0], "; ".join(self._wait(*first[r]) for r in circle))

    def _wait(self, posted: Posted, peer: int) -> str:
        act = "send to" if posted.step.kind in SENDING else "receive from"
        return (
            f"rank {posted.rank} waits in round {posted.round} to {act} rank {peer} "
            f"{_range(posted.step)}"
        )

    def _deadlock(self, posted: Posted, who: str) -> NoReturn:
        block = posted.step.first if posted.step.count else None
        self._fail(posted.rank, posted.round, block, f"deadlock: {who}")

    def _verify(self) -> None:
        """Compare every output with what the collective promises."""
        copies: dict[int, tuple[int, int]] = {}
        for plan in self.plans:
            end = len(plan.rounds)
            if self.barrier and self.heard[plan.rank] != self.full:
                unheard = _ranks(self.full & ~self.heard[plan.rank])
                self._fail(plan.rank, end, None, f"may leave before {unheard} has entered")
            for block in outputs(plan.collective, plan.size, plan.rank, plan.root, plan.blocks):
                value, wanted = self.values[plan.rank][block], self._wanted(plan, block)
                if value & self.full != wanted:
                    has, wants = _ranks(value & self.full), _ranks(wanted)
                    self._fail(plan.rank, end, block, f"ends with data of {has}, not of {wants}")
                rank, copy = copies.setdefault(block, (plan.rank, value))
                if copy != value:
                    self._note(plan.rank, end, block, f"not from the same seal as at rank {rank}")

    def _wanted(self, plan: Schedule, block: int) -> int:
        if plan.collective in REDUCING:
            return self.full
        if plan.collective in ("bcast", "scatter"):
            return 1 << plan.root
        return 1 << (block // self.size if plan.collective == "alltoall" else block)

    def _note(self, rank: int, now: int, block: int, what: str) -> None:
        if not self.codec_error:
            self.codec_error = ScheduleError(self.plans[rank], now, block, f"with a codec: {what}")

    def _fail(self, rank: int, now: int, block: int | None, what: str) -> NoReturn:
        raise ScheduleError(self.plans[rank], now, block, what)
