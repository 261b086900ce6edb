"""Checks of what was read while faults struck."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads.payload import DAMAGED_PREFIX
from dledger_chaos.workloads.records import Found, Pulled, Seen, extras, seen
from dledger_remoting.codes import ResponseCode

from .base import Findings, Judgement, RunData
from .logs import first_kept, group_of
from .messages import Place, Sent
from .recovery import fault_spans

ROTS: Final = "bit-rot"
"""The fault under which a running node serves what it cannot know to be damaged."""


def two_values(run: RunData) -> Judgement:
    """Whoever reads a queue offset, whenever and on whichever node, finds the same message at the same byte."""
    findings, checked = Findings(), 0
    held: dict[Place, Seen] = {}
    for operation, one in _reads(run, "pull", "scan", "deliver"):
        checked += 1
        before = held.setdefault((operation.key, one.offset), one)
        if before.position < 0:
            held[operation.key, one.offset] = one  # a client that does not tell the byte
        moved = before.position != one.position and before.position >= 0 and one.position >= 0
        if before.value != one.value or moved:
            findings.violation(
                f"{operation.key}@{one.offset} held {before.value} at byte {before.position} and {one.value} at byte "
                f"{one.position} (read by {operation.process}, operation {operation.id})"
            )
    return findings.judged(checked, "reads of a message", offsets=len(held))


def dirty(run: RunData) -> Judgement:
    """What was read, of any node at any time, is there at the end: nothing uncommitted is ever shown.

    What was trimmed meanwhile is at least not refused, and no other message was acknowledged in its place.
    """
    findings, checked, trimmed = Findings(), 0, 0
    acknowledged = {sent.place: sent.value for sent in run.messages.acknowledged()}
    for reason in run.messages.unread(_read_keys(run)):
        findings.doubt(reason)
    for operation, one in _reads(run, "pull", "deliver"):
        queue = run.messages.queues.get(operation.key)
        if queue is None or queue.bounds is None:
            continue
        if one.offset < queue.bounds[0]:
            trimmed += 1
            why = _never_there(run.messages.sent.get(one.value), one, acknowledged.get((operation.key, one.offset)))
            if why:
                findings.violation(
                    f"{operation.process} read {one.value} at {operation.key}@{one.offset} (operation {operation.id}), "
                    f"which is trimmed now: {why}"
                )
            continue
        checked += 1
        now = queue.contents.get(one.offset)
        if now is None and queue.unread():
            continue
        if now is None or now.value != one.value:
            there = "nothing" if now is None else now.value
            findings.violation(
                f"{operation.process} read {one.value} at {operation.key}@{one.offset} (operation {operation.id}); "
                f"at the end it holds {there}"
            )
    return findings.judged(checked, "reads of a message", trimmed=trimmed)


def _never_there(sent: Sent | None, one: Seen, acknowledged: str | None) -> str:
    """Why what was read cannot have been stored there, as far as clients were told; empty if it can."""
    if sent is None:
        return "nobody sent it"
    if sent.outcome == "fail":
        return "it was refused"
    return "" if acknowledged in {None, one.value} else f"{acknowledged} was acknowledged there"


def unreadable(run: RunData) -> Judgement:
    """A message can be found by id, by key and below its queue's end as soon as it is acknowledged.

    No pull passes over a message between those that it brings.
    """
    findings, checked = Findings(), 0
    ends = _AcknowledgedEnds(run)
    for operation in run.operations:
        if operation.outcome != "ok":
            continue
        if operation.f == "view":
            checked += 1
            offset, value = msgspec.convert(operation.value, tuple[int, str])
            answer = extras(operation, Found)
            if answer.found != value:
                findings.violation(
                    f"{value} at {operation.key}@{offset} was looked for by {answer.by}: found {answer.found} "
                    f"(operation {operation.id})"
                )
        elif operation.f in {"end", "pull"}:
            at_least = ends.before(operation.key, operation.invoke_ns)
            if operation.f == "end":
                told = int(str(operation.value))
            else:
                pulled = extras(operation, Pulled)
                if found := [one.offset for one in seen(operation)]:
                    checked += 1
                    if [*found, pulled.next_offset] != list(range(found[0], found[0] + len(found) + 1)):
                        findings.violation(
                            f"{pulled.node} answered a pull of {operation.key}@{pulled.offset} with {found}, to go on "
                            f"at {pulled.next_offset} (operation {operation.id})"
                        )
                if pulled.code != ResponseCode.PULL_OFFSET_MOVED or pulled.next_offset >= pulled.offset:
                    continue
                told = pulled.next_offset
            checked += 1
            if told < at_least:
                findings.violation(
                    f"{operation.key}: the end was said to be {told} by operation {operation.id}, "
                    f"after offset {at_least - 1} had been acknowledged"
                )
    return findings.judged(checked, "look-ups")


def retention(run: RunData) -> Judgement:
    """A read below a queue's first offset is answered 21 with the offset to go on at, at the end by every node.

    A queue loses only what the log has lost: its first offset never runs ahead of the log's beginning.
    """
    findings, checked = Findings(), 0
    for reason in _left_behind(run):
        findings.doubt(reason)
    for operation in run.operations:
        if operation.f != "pull" or operation.outcome != "ok":
            continue
        pulled = extras(operation, Pulled)
        queue = run.messages.queues.get(operation.key)
        if queue is None or queue.bounds is None:
            continue
        found = seen(operation)
        if found and found[0].offset != pulled.offset:
            findings.violation(
                f"operation {operation.id} asked {pulled.node} for {operation.key}@{pulled.offset} and was given "
                f"{found[0].offset}"
            )
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED and pulled.next_offset > pulled.offset:
            checked += 1
            if pulled.next_offset > queue.bounds[0]:
                findings.violation(
                    f"operation {operation.id} was sent to {operation.key}@{pulled.next_offset}, behind the first kept "
                    f"offset {queue.bounds[0]}"
                )
    kept = first_kept(run)
    for sent in run.messages.acknowledged():
        assert sent.place is not None
        queue = run.messages.queues.get(sent.place[0])
        if queue is None or queue.bounds is None or sent.place[1] >= queue.bounds[0]:
            continue
        first_byte = kept.get(group_of(sent.place))
        if first_byte is not None and sent.position >= first_byte:
            findings.violation(f"{sent} was trimmed, but byte {sent.position} of the log is kept")
    return findings.judged(checked, "reads below the first offset")


def _left_behind(run: RunData) -> Iterator[str]:
    """Which nodes have told no reader where to go on who came too late when everything had healed."""
    final_ns = max((event.time_ns for event in run.events if event.name == "final-reads"), default=run.info.end_ns)
    last: dict[str, dict[str, Operation]] = {}
    for operation in run.operations:
        if operation.f == "pull" and operation.invoke_ns >= final_ns:
            queue = run.messages.queues.get(operation.key)
            if queue is not None and queue.bounds is not None and _asked(operation) < queue.bounds[0]:
                last.setdefault(operation.key, {})[str(operation.extras["node"])] = operation
    for key, by_node in last.items():
        for node, operation in by_node.items():
            moved = operation.outcome == "ok" and extras(operation, Pulled).code == ResponseCode.PULL_OFFSET_MOVED
            if not (moved and extras(operation, Pulled).next_offset > _asked(operation)):
                yield f"{node} was asked for {key}@{_asked(operation)}, and told nobody where to go on"
        for node in sorted(run.messages.queues[key].readers - by_node.keys()):
            yield f"{node} was not asked for what {key} has no more"


def _asked(pull: Operation) -> int:
    return msgspec.convert(pull.extras["offset"], int)


def _reads(run: RunData, *functions: str) -> Iterator[tuple[Operation, Seen]]:
    """Every message that was read, but for damaged ones from a node whose bits rot while it runs.

    Such a node cannot know before it looks: the body's CRC tells its clients.
    """
    spans = fault_spans(run.events)
    rotting = [
        (event.fields["nodes"], *spans[number][1:])
        for event in run.events
        if event.kind == "fault-begin" and event.name == ROTS and (number := int(str(event.fields["id"]))) in spans
    ]
    for operation in run.operations:
        if operation.f in functions and operation.outcome == "ok":
            if operation.f == "deliver":
                yield operation, msgspec.convert(operation.value, Seen)
                continue
            rots = any(
                [operation.extras.get("node")] == nodes
                and (operation.complete_ns or end_ns) >= begin_ns
                and operation.invoke_ns <= end_ns
                for nodes, begin_ns, end_ns in rotting
            )
            for one in seen(operation):
                if not (rots and one.value.startswith(DAMAGED_PREFIX)):
                    yield operation, one


def _read_keys(run: RunData) -> set[str]:
    return {operation.key for operation in run.operations if operation.f in {"pull", "deliver"}}


class _AcknowledgedEnds:
    """By queue and time: the end offset that acknowledgements have proved by then."""

    def __init__(self, run: RunData) -> None:
        moments: dict[str, list[tuple[int, int]]] = {}
        for sent in run.messages.acknowledged():
            assert sent.place is not None
            assert sent.operation.complete_ns is not None
            moments.setdefault(sent.place[0], []).append((sent.operation.complete_ns, sent.place[1] + 1))
        self._times: dict[str, list[int]] = {}
        self._ends: dict[str, list[int]] = {}
        for key, found in moments.items():
            found.sort()
            highest = 0
            self._times[key] = [time_ns for time_ns, _ in found]
            self._ends[key] = [highest := max(highest, end) for _, end in found]

    def before(self, key: str, time_ns: int) -> int:
        """The highest end offset acknowledged before a time, 0 if none was."""
        count = bisect_left(self._times.get(key, []), time_ns)
        return self._ends[key][count - 1] if count else 0
