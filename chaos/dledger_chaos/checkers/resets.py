"""Check of consumer groups that are reset: they continue at the offset of the reset, and no commit undoes it."""

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
"""Maximum delay in ns until a reset of unknown outcome takes effect."""


@dataclass(frozen=True, slots=True)
class _Start:
    """An offset at which a group starts; it is None if unknown. `reset` is None for the beginning of a run."""

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
    """The deliveries of one queue, and its resets in the order of their calls."""

    resets: list[_Start] = field(default_factory=list)
    deliveries: dict[int, list[int]] = field(default_factory=dict)
    """Times of the deliveries of each offset."""
    first: int = 0
    """The first offset that was kept until the end."""
    complete_until: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Cache of `missing` by the time of a start: an end below which no offset was missing, and at which time."""

    def possible_starts(self, read: Operation) -> list[_Start]:
        """Return the starts that may be the group's last one at the time of a read; the first is certain."""
        certain, index = _Start(0, 0), -1
        for number, start in enumerate(self.resets):
            if start.reset is not None and start.reset.outcome == "ok" and _end_ns(start.reset) < read.invoke_ns:
                certain, index = start, number
        unknown = [
            start for start in self.resets[: max(index, 0)] if start.reset is not None and start.reset.outcome != "ok"
        ]
        late = [start for start in unknown if certain.since_ns - start.since_ns < LATE_NS]
        beside = [start for start in self.resets[index + 1 :] if start.since_ns < _end_ns(read)]
        return [certain, *late, *beside]

    def may_follow(self, start: _Start, committed: int, until_ns: int) -> bool:
        """Return True if all messages between a start and a committed offset were delivered after that start."""
        if start.offset is None:
            return True
        return committed >= start.offset and self.missing(start, committed, until_ns) is None

    def missing(self, start: _Start, end: int, until_ns: int) -> int | None:
        """Return the first offset below `end` that was not delivered after a start, None if there is none."""
        begin = max(start.offset or 0, self.first)
        known, at_ns = self.complete_until.get(start.since_ns, (begin, 0))
        begin = known if at_ns <= until_ns else begin
        for offset in range(begin, end):
            if not self.was_delivered(offset, start.since_ns, until_ns):
                return offset
        if end > known:
            self.complete_until[start.since_ns] = end, until_ns
        return None

    def was_delivered(self, offset: int, since_ns: int, until_ns: int) -> bool:
        """Return True if a message was delivered between two times."""
        moments = self.deliveries.get(offset, [])
        at = bisect_left(moments, since_ns)
        return at < len(moments) and moments[at] <= until_ns


def obeyed(run: RunData) -> Judgement:
    """Check that all messages between a group's last reset and its committed offset were delivered after the reset.

    No commit of an earlier read undoes an answered reset, from any member and at any time. Once all faults are healed,
    a group gets all messages from the offset of its reset on, with members and without.
    """
    findings, checked = Findings(), 0
    queues = _collect_queues(run)
    for read in run.of(resets.NAME, "committed", outcome="ok"):
        checked += 1
        key = read.key.partition("@")[2]
        _judge_read(read, queues.setdefault(key, _Queue()), findings)
    _judge_end(run, queues, findings)
    answered = len(run.of(resets.NAME, "reset", outcome="ok"))
    if not answered:
        findings.doubt("the group was never reset")
    deliveries = sum(len(moments) for queue in queues.values() for moments in queue.deliveries.values())
    return findings.judged(checked, "reads of committed offsets", resets=answered, deliveries=deliveries)


def _judge_read(read: Operation, queue: _Queue, findings: Findings) -> None:
    certain, *others = bases = queue.possible_starts(read)
    if read.value is None:
        if certain.reset is not None:
            findings.violation(f"{read.key}: nothing is committed (operation {read.id}) behind the reset to {certain}")
        return
    committed = msgspec.convert(read.value, int)
    if not any(queue.may_follow(base, committed, _end_ns(read)) for base in bases):
        unknown = f", or to {', '.join(map(str, others))}" if others else ""
        missing = queue.missing(certain, committed, _end_ns(read))
        findings.violation(
            f"{read.key}: {committed} is committed (operation {read.id}), and not everything up to there was delivered "
            f"since the reset to {certain}{unknown}: the first that was not is {missing}"
        )


def _judge_end(run: RunData, queues: dict[str, _Queue], findings: Findings) -> None:
    """Judge that final resets are answered, and their messages delivered before the next reset of the queue."""
    last: dict[str, Operation] = {}
    for operation in run.of(resets.NAME, "reset"):
        if operation.process == resets.FINAL:
            last |= {key: operation for key, _ in _decode_rows(operation)}
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
                if offset >= begin and not queue.was_delivered(offset, base.since_ns, until_ns)
            ]
            if missing:
                findings.violation(
                    f"{key}: {len(missing)} messages were not delivered after the reset to {base}, the first is "
                    f"{min(missing)}"
                )


def _collect_queues(run: RunData) -> dict[str, _Queue]:
    queues: dict[str, _Queue] = {}
    for operation in run.of(resets.NAME, "reset"):
        if operation.outcome != "fail":
            for key, offset in _decode_rows(operation):
                queues.setdefault(key, _Queue()).resets.append(_Start(offset, operation.invoke_ns, operation))
    for operation in run.of(resets.NAME, "deliver", outcome="ok"):
        offset = msgspec.convert(operation.value, Seen).offset
        queues.setdefault(operation.key, _Queue()).deliveries.setdefault(offset, []).append(operation.invoke_ns)
    for key, queue in queues.items():
        known = run.messages.queues.get(key)
        if known is not None and known.bounds is not None:
            queue.first = known.bounds[0]
        for moments in queue.deliveries.values():
            moments.sort()
    return queues


def _decode_rows(operation: Operation) -> list[tuple[str, int | None]]:
    return msgspec.convert(operation.value, list[tuple[str, int | None]])


def _end_ns(operation: Operation) -> int:
    assert operation.complete_ns is not None
    return operation.complete_ns
