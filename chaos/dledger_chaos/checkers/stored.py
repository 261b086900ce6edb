"""Checks that compare the content of the queues at the end with the answers that clients got."""

from __future__ import annotations

from typing import Final

import msgspec

from .base import Findings, Judgement, RunData
from .logs import first_kept, group_of
from .messages import AT_MOST_ONCE, Messages, Place, Sent
from .recovery import struck_faults

IDEMPOTENT: Final = frozenset({"append", "grpc"})
"""Workloads with idempotent sends."""


def lost(run: RunData) -> Judgement:
    """Check that every acknowledged message lies, on every node, at the queue offset of its acknowledgement.

    With the workload `retention`, messages below a queue's first offset count as trimmed, and the check `retention`
    judges the trims. Without it, they count as trimmed only if the log was trimmed beyond their position.
    """
    findings, trimmed, checked = Findings(), 0, 0
    messages = run.messages
    acknowledged = list(messages.acknowledged())
    for reason in messages.unread(sent.place[0] for sent in acknowledged if sent.place is not None):
        findings.doubt(reason)
    places, kept = messages.places, first_kept(run)
    trims = "retention" in run.info.workloads
    for sent in acknowledged:
        assert sent.place is not None
        key, offset = sent.place
        queue = messages.queues.get(key)
        if queue is None or queue.bounds is None:
            continue
        first, end = queue.bounds
        if offset < first:
            # Some clients do not report the position of the message, which is -1 then.
            if trims or max(sent.position, 0) < kept.get(group_of(sent.place), 0):
                trimmed += 1
            else:
                findings.violation(f"{sent}: its queue begins at offset {first}, and the log was not trimmed that far")
            continue
        checked += 1
        if offset >= end:
            findings.violation(f"{sent}: its queue ends at offset {end}")
            continue
        for node, contents in queue.nodes.items():
            found = contents.get(offset)
            if found is None and not queue.read_through(node):
                continue
            if found is None or found.value != sent.value:
                there = "nothing" if found is None else found.value
                elsewhere = ", ".join(f"{where}@{at}" for where, at in places.get(sent.value, ())) or "nowhere"
                findings.violation(f"{sent}: {node} has {there} there; the message lies {elsewhere}")
                break
    return findings.judged(checked, "acknowledged messages", trimmed=trimmed)


def phantom(run: RunData) -> Judgement:
    """Check that a client sent every message in a queue, byte for byte."""
    findings, checked = Findings(), 0
    for queue in run.messages.queues.values():
        for node, contents in queue.nodes.items():
            for message in contents.values():
                checked += 1
                if message.value not in run.messages.sent:
                    findings.violation(f"{queue.key}@{message.offset} on {node}: nobody sent {message.value}")
    return findings.judged(checked, "stored messages, counted on every node")


def refused(run: RunData) -> Judgement:
    """Check that no queue has a message that was refused with 14 or 2, or that certainly was not sent."""
    findings = Findings()
    places = run.messages.places
    failed = [sent for sent in run.messages.sent.values() if sent.outcome == "fail"]
    # The key of a `send-ordered` is its ordering key. Only an acknowledgement names the topic of such a send.
    topics = {sent.operation.key for sent in run.messages.sent.values() if sent.operation.f != "send-ordered"}
    acknowledged = {sent.place[0] for sent in run.messages.acknowledged() if sent.place is not None}
    for reason in run.messages.unread({*run.messages.queues, *topics, *acknowledged}):
        findings.doubt(reason)
    for sent in failed:
        for key, offset in places.get(sent.value, ()):
            findings.violation(f"{sent}, {sent.operation.error}: stored at {key}@{offset}")
    return findings.judged(len(run.messages.sent), "messages", refused=len(failed))


def duplicated(run: RunData) -> Judgement:
    """Check that a message is stored once. It may lie twice if it was repeated after an unknown outcome."""
    findings, checked, repeated = Findings(), 0, 0
    for value, places in run.messages.places.items():
        sent = run.messages.sent.get(value)
        if sent is None:
            continue
        checked += 1
        if len(places) > 1 and sent.operation.f in AT_MOST_ONCE:
            findings.violation(f"{sent} lies {_format_places(places)}")
        repeated += len(places) - 1
    return findings.judged(checked, "stored messages", copies=repeated)


def idempotent(run: RunData) -> Judgement:
    """Check that an idempotent send is stored at most once, even if it was repeated."""
    findings, checked = Findings(), 0
    for value, places in run.messages.places.items():
        sent = run.messages.sent.get(value)
        if sent is not None and sent.operation.f == "send-idempotent":
            checked += 1
            if len(places) > 1:
                findings.violation(f"{sent} lies {_format_places(places)}")
    return findings.judged(checked, "idempotent sends that are stored")


def idempotence_is_promised(run: RunData) -> bool:
    """Return True if a run has idempotent sends, and no jump of a clock that may make brokers forget sends."""
    jumps = any(kind == "clock-jump" for _, kind, _ in struck_faults(run.events))
    return not jumps and any(run.of(name, "send-idempotent") for name in IDEMPOTENT)


def offset_given_twice(run: RunData) -> Judgement:
    """Check that no two acknowledgements name the same queue offset."""
    findings = Findings()
    holders: dict[Place, Sent] = {}
    for sent in run.messages.acknowledged():
        assert sent.place is not None
        first = holders.setdefault(sent.place, sent)
        if first is not sent:
            findings.violation(f"{first.value} and {sent} were given the same offset")
    return findings.judged(len(holders), "acknowledged queue offsets")


def gaps(run: RunData) -> Judgement:
    """Check that every queue has a message at each offset from its first to its end, on every node."""
    findings, checked = Findings(), 0
    for queue in run.messages.queues.values():
        if reason := queue.unread():
            findings.doubt(reason)
        if queue.bounds is None:
            continue
        first, end = queue.bounds
        for node, contents in queue.nodes.items():
            if not queue.read_through(node):
                continue
            checked += end - first
            missing = [offset for offset in range(first, end) if offset not in contents]
            if missing:
                findings.violation(
                    f"{queue.key} on {node}: {len(missing)} offsets are empty, the first is {missing[0]}"
                )
    return findings.judged(checked, "queue offsets, counted on every node")


def torn_batch(run: RunData) -> Judgement:
    """Check that a batch is stored as a whole, at consecutive offsets of one queue, or not at all."""
    findings, checked = Findings(), 0
    places = run.messages.places
    first_offsets = {queue.key: queue.bounds[0] for queue in run.messages.queues.values() if queue.bounds}
    unread: dict[str, list[str]] = {}
    for operation in run.operations:
        if operation.f != "send-batch":
            continue
        topic = operation.key
        if topic not in unread:
            unread[topic] = run.messages.unread((topic,))
            for reason in unread[topic]:
                findings.doubt(reason)
        if unread[topic]:
            continue
        checked += 1
        values = msgspec.convert(operation.value, list[str])
        found = [places.get(value, []) for value in values]
        if not any(found) or _is_trimmed(run.messages, values, first_offsets):
            continue
        starts = {(key, offset - number) for number, where in enumerate(found) for key, offset in where}
        if not all(found) or len(starts) > 1:
            stored = sum(map(bool, found))
            findings.violation(
                f"operation {operation.id}: {stored} of {len(values)} messages from {values[0]} on are stored"
            )
    return findings.judged(checked, "batches")


def _is_trimmed(messages: Messages, values: list[str], first_offsets: dict[str, int]) -> bool:
    place = messages.sent[values[0]].place
    return place is not None and place[1] < first_offsets.get(place[0], 0)


def _format_places(places: list[Place]) -> str:
    return ", ".join(f"{key}@{offset}" for key, offset in places)
