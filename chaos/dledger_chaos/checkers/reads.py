"""Checks of the messages and offsets that readers got."""

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
"""Name of the fault under which a running node may serve damaged data without noticing."""


def two_values(run: RunData) -> Judgement:
    """Check that all reads of a queue offset, on all nodes, find the same message at the same byte."""
    findings, checked = Findings(), 0
    first_reads: dict[Place, Seen] = {}
    for operation, message in _iter_reads(run, "pull", "scan", "deliver"):
        checked += 1
        first_read = first_reads.setdefault((operation.key, message.offset), message)
        if first_read.position < 0:
            first_reads[operation.key, message.offset] = message  # a client that does not report the byte
        moved = first_read.position != message.position and first_read.position >= 0 and message.position >= 0
        if first_read.value != message.value or moved:
            findings.violation(
                f"{operation.key}@{message.offset} held {first_read.value} at byte {first_read.position} and "
                f"{message.value} at byte {message.position} (read by {operation.process}, operation {operation.id})"
            )
    return findings.judged(checked, "reads of a message", offsets=len(first_reads))


def dirty(run: RunData) -> Judgement:
    """Check that every message that any node returned is stored at the end: uncommitted messages are never shown.

    A message that was trimmed meanwhile must not have been refused, and no other message was acknowledged in its place.
    """
    findings, checked, trimmed = Findings(), 0, 0
    acknowledged = {sent.place: sent.value for sent in run.messages.acknowledged()}
    for reason in run.messages.unread(_find_read_keys(run)):
        findings.doubt(reason)
    for operation, message in _iter_reads(run, "pull", "deliver"):
        queue = run.messages.queues.get(operation.key)
        if queue is None or queue.bounds is None:
            continue
        if message.offset < queue.bounds[0]:
            trimmed += 1
            why = _explain_impossible_read(
                run.messages.sent.get(message.value), message, acknowledged.get((operation.key, message.offset))
            )
            if why:
                findings.violation(
                    f"{operation.process} read {message.value} at {operation.key}@{message.offset} "
                    f"(operation {operation.id}), which is trimmed now: {why}"
                )
            continue
        checked += 1
        final = queue.contents.get(message.offset)
        if final is None and queue.unread():
            continue
        if final is None or final.value != message.value:
            final_value = "nothing" if final is None else final.value
            findings.violation(
                f"{operation.process} read {message.value} at {operation.key}@{message.offset} "
                f"(operation {operation.id}); at the end it holds {final_value}"
            )
    return findings.judged(checked, "reads of a message", trimmed=trimmed)


def _explain_impossible_read(sent: Sent | None, message: Seen, acknowledged: str | None) -> str:
    """Return the reason why a read message cannot have been stored at its place, empty if it can."""
    if sent is None:
        return "nobody sent it"
    if sent.outcome == "fail":
        return "it was refused"
    return "" if acknowledged in {None, message.value} else f"{acknowledged} was acknowledged there"


def unreadable(run: RunData) -> Judgement:
    """Check that a message is found by id, by key and below its queue's end as soon as it is acknowledged.

    A pull returns consecutive messages, and the offset behind the last one.
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
                reported_end = int(str(operation.value))
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
                reported_end = pulled.next_offset
            checked += 1
            if reported_end < at_least:
                findings.violation(
                    f"{operation.key}: the end was said to be {reported_end} by operation {operation.id}, "
                    f"after offset {at_least - 1} had been acknowledged"
                )
    return findings.judged(checked, "look-ups")


def retention(run: RunData) -> Judgement:
    """Check that a read below a queue's first offset is answered 21, with the offset at which to continue.

    A queue loses a message only if the log has lost it: its first offset never runs ahead of the log's beginning.
    """
    findings, checked = Findings(), 0
    for reason in _iter_silent_nodes(run):
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


def _iter_silent_nodes(run: RunData) -> Iterator[str]:
    """Yield a reason for each node that, after all faults were healed, told a late reader no offset to continue at."""
    final_ns = max((event.time_ns for event in run.events if event.name == "final-reads"), default=run.info.end_ns)
    last: dict[str, dict[str, Operation]] = {}
    for operation in run.operations:
        if operation.f == "pull" and operation.invoke_ns >= final_ns:
            queue = run.messages.queues.get(operation.key)
            if queue is not None and queue.bounds is not None and _get_requested_offset(operation) < queue.bounds[0]:
                last.setdefault(operation.key, {})[str(operation.extras["node"])] = operation
    for key, by_node in last.items():
        for node, operation in by_node.items():
            moved = operation.outcome == "ok" and extras(operation, Pulled).code == ResponseCode.PULL_OFFSET_MOVED
            if not (moved and extras(operation, Pulled).next_offset > _get_requested_offset(operation)):
                yield f"{node} was asked for {key}@{_get_requested_offset(operation)}, and told nobody where to go on"
        for node in sorted(run.messages.queues[key].readers - by_node.keys()):
            yield f"{node} was not asked for trimmed offsets of {key}"


def _get_requested_offset(pull: Operation) -> int:
    return msgspec.convert(pull.extras["offset"], int)


def _iter_reads(run: RunData, *functions: str) -> Iterator[tuple[Operation, Seen]]:
    """Yield every message that was read, except damaged messages from a node under bit rot.

    Such a node does not verify the bytes that it serves. Clients notice the damage by the body's CRC.
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
            is_rotting = any(
                [operation.extras.get("node")] == nodes
                and (operation.complete_ns or end_ns) >= begin_ns
                and operation.invoke_ns <= end_ns
                for nodes, begin_ns, end_ns in rotting
            )
            for message in seen(operation):
                if not (is_rotting and message.value.startswith(DAMAGED_PREFIX)):
                    yield operation, message


def _find_read_keys(run: RunData) -> set[str]:
    return {operation.key for operation in run.operations if operation.f in {"pull", "deliver"}}


class _AcknowledgedEnds:
    """End offsets of queues over time, as acknowledgements prove them."""

    def __init__(self, run: RunData) -> None:
        moments: dict[str, list[tuple[int, int]]] = {}
        for sent in run.messages.acknowledged():
            assert sent.place is not None
            assert sent.operation.complete_ns is not None
            moments.setdefault(sent.place[0], []).append((sent.operation.complete_ns, sent.place[1] + 1))
        self._times: dict[str, list[int]] = {}
        self._ends: dict[str, list[int]] = {}
        for key, acknowledgements in moments.items():
            acknowledgements.sort()
            highest = 0
            self._times[key] = [time_ns for time_ns, _ in acknowledgements]
            self._ends[key] = [highest := max(highest, end) for _, end in acknowledgements]

    def before(self, key: str, time_ns: int) -> int:
        """Return the highest end offset acknowledged before a time, 0 without an acknowledgement."""
        count = bisect_left(self._times.get(key, []), time_ns)
        return self._ends[key][count - 1] if count else 0
