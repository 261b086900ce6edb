"""Check of consumer groups that are reset: where they went on, and whether anything undid that."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads import resets
from dledger_chaos.workloads.records import Seen

from .base import Findings, Judgement, RunData

LATE_NS: Final = 75 * 10**9
"""So long a reset of unknown outcome may lie in a node before it takes effect."""


@dataclass(frozen=True, slots=True)
class _Base:
    """Where a group begins: `offset` is None if nobody knows it, `reset` None at the beginning of a run."""

    offset: int | None
    since_ns: int
    reset: Operation | None = None

    def __str__(self) -> str:
        return (
            "the beginning"
            if self.reset is None
            else f"{self.offset} (operation {self.reset.id}, {self.reset.outcome})"
        )


@dataclass(slots=True)
class _Queue:
    """What is known of one queue: what the group was given of it, and its resets in the order of their calls."""

    resets: list[_Base] = field(default_factory=list)
    given: dict[int, list[int]] = field(default_factory=dict)
    """When each offset was given to members."""
    first: int = 0
    """The first offset that was kept until the end."""
    complete_until: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the time of a base: up to where everything behind it had been given, and when."""

    def bases(self, read: Operation) -> list[_Base]:
        """Where the group may have begun last, as it was when somebody asked."""
        certain, at = _Base(0, 0), -1
        for number, base in enumerate(self.resets):
            if base.reset is not None and base.reset.outcome == "ok" and _ended_ns(base.reset) < read.invoke_ns:
                certain, at = base, number
        unknown = [base for base in self.resets[: max(at, 0)] if base.reset is not None and base.reset.outcome != "ok"]
        late = [base for base in unknown if certain.since_ns - base.since_ns < LATE_NS]
        beside = [base for base in self.resets[at + 1 :] if base.since_ns < _ended_ns(read)]
        return [certain, *late, *beside]

    def rests_on(self, base: _Base, committed: int, until_ns: int) -> bool:
        """Whether a committed offset may come of a base: everything in between was given behind it."""
        if base.offset is None:
            return True
        return committed >= base.offset and self._missing(base, committed, until_ns) is None

    def _missing(self, base: _Base, end: int, until_ns: int) -> int | None:
        begin = max(base.offset or 0, self.first)
        known, at_ns = self.complete_until.get(base.since_ns, (begin, 0))
        begin = known if at_ns <= until_ns else begin
        for offset in range(begin, end):
            if not self.was_given(offset, base.since_ns, until_ns):
                return offset
        if end > known:
            self.complete_until[base.since_ns] = end, until_ns
        return None

    def was_given(self, offset: int, since_ns: int, until_ns: int) -> bool:
        """Whether a member was given a message within a span of time."""
        moments = self.given.get(offset, [])
        at = bisect_left(moments, since_ns)
        return at < len(moments) and moments[at] <= until_ns


def obeyed(run: RunData) -> Judgement:
    """What is committed for a group rests on its last reset: everything in between was delivered behind that.

    A reset that was answered is undone by no commit of what was read before, whoever sends it and however late. When
    everything is healed, a group that is reset is given everything from there on, with members and without.
    """
    findings, checked = Findings(), 0
    queues = _queues(run)
    for read in run.of(resets.NAME, "committed", outcome="ok"):
        checked += 1
        key = read.key.partition("@")[2]
        _judge_read(read, queues.setdefault(key, _Queue()), findings)
    _judge_end(run, queues, findings)
    answered = len(run.of(resets.NAME, "reset", outcome="ok"))
    if not answered:
        findings.doubt("the group was never reset")
    deliveries = sum(len(moments) for queue in queues.values() for moments in queue.given.values())
    return findings.judged(checked, "reads of committed offsets", resets=answered, deliveries=deliveries)


def _judge_read(read: Operation, queue: _Queue, findings: Findings) -> None:
    certain, *others = bases = queue.bases(read)
    if read.value is None:
        if certain.reset is not None:
            findings.violation(f"{read.key}: nothing is committed (operation {read.id}) behind the reset to {certain}")
        return
    committed = msgspec.convert(read.value, int)
    if not any(queue.rests_on(base, committed, _ended_ns(read)) for base in bases):
        unknown = f", or to {', '.join(map(str, others))}" if others else ""
        findings.violation(
            f"{read.key}: {committed} is committed (operation {read.id}), and not everything up to there was delivered "
            f"since the reset to {certain}{unknown}"
        )


def _judge_end(run: RunData, queues: dict[str, _Queue], findings: Findings) -> None:
    """The resets of the end are answered, and obeyed before the next one of their queue."""
    last: dict[str, Operation] = {}
    for operation in run.of(resets.NAME, "reset"):
        if operation.process == resets.FINAL:
            last |= {key: operation for key, _ in _rows(operation)}
    for key, operation in last.items():
        if operation.outcome != "ok":
            findings.violation(f"{key} could not be reset when everything was healed: {operation.error}")
    acknowledged: dict[str, list[int]] = {}
    for sent in run.messages.acknowledged():
        if sent.place is not None:
            acknowledged.setdefault(sent.place[0], []).append(sent.place[1])
    for key in last:
        queue = queues[key]
        for number, base in enumerate(queue.resets):
            if base.reset is None or base.reset.process != resets.FINAL or base.reset.outcome != "ok":
                continue
            until_ns = queue.resets[number + 1].since_ns if number + 1 < len(queue.resets) else run.info.end_ns
            begin = max(base.offset or 0, queue.first)
            missing = [
                offset
                for offset in acknowledged.get(key, [])
                if offset >= begin and not queue.was_given(offset, base.since_ns, until_ns)
            ]
            if missing:
                findings.violation(
                    f"{key}: {len(missing)} messages were not delivered after the reset to {base}, the first is "
                    f"{min(missing)}"
                )


def _queues(run: RunData) -> dict[str, _Queue]:
    queues: dict[str, _Queue] = {}
    for operation in run.of(resets.NAME, "reset"):
        if operation.outcome != "fail":
            for key, offset in _rows(operation):
                queues.setdefault(key, _Queue()).resets.append(_Base(offset, operation.invoke_ns, operation))
    for operation in run.of(resets.NAME, "deliver", outcome="ok"):
        offset = msgspec.convert(operation.value, Seen).offset
        queues.setdefault(operation.key, _Queue()).given.setdefault(offset, []).append(operation.invoke_ns)
    for key, queue in queues.items():
        known = run.messages.queues.get(key)
        if known is not None and known.bounds is not None:
            queue.first = known.bounds[0]
        for moments in queue.given.values():
            moments.sort()
    return queues


def _rows(operation: Operation) -> list[tuple[str, int | None]]:
    return msgspec.convert(operation.value, list[tuple[str, int | None]])


def _ended_ns(operation: Operation) -> int:
    assert operation.complete_ns is not None
    return operation.complete_ns
