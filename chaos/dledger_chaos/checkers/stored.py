"""Checks of what lay in the queues at the end against what clients were told."""

from __future__ import annotations

import msgspec

from .base import Findings, Judgement, RunData
from .logs import first_kept, group_of
from .messages import AT_MOST_ONCE, Messages, Place, Sent


def lost(run: RunData) -> Judgement:
    """Every acknowledged message lies, on every node, at the queue offset that its acknowledgement named.

    Messages below a queue's first offset were trimmed by retention; `retention` judges whether they might be. Where
    nothing trims, only those count as trimmed that the log has lost.
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
            # Some clients do not tell at which byte it lies.
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
    """Every message in a queue is one that a client sent, byte for byte."""
    findings, checked = Findings(), 0
    for queue in run.messages.queues.values():
        for node, contents in queue.nodes.items():
            for one in contents.values():
                checked += 1
                if one.value not in run.messages.sent:
                    findings.violation(f"{queue.key}@{one.offset} on {node}: nobody sent {one.value}")
    return findings.judged(checked, "stored messages, counted on every node")


def refused(run: RunData) -> Judgement:
    """A message that was refused with 14 or 2, or that the client is certain not to have sent, is in no queue."""
    findings = Findings()
    places = run.messages.places
    failed = [sent for sent in run.messages.sent.values() if sent.outcome == "fail"]
    # With an ordering key it is known only of what was acknowledged which topic it was sent to.
    topics = {sent.operation.key for sent in run.messages.sent.values() if sent.operation.f != "send-ordered"}
    acknowledged = {sent.place[0] for sent in run.messages.acknowledged() if sent.place is not None}
    for reason in run.messages.unread({*run.messages.queues, *topics, *acknowledged}):
        findings.doubt(reason)
    for sent in failed:
        for key, offset in places.get(sent.value, ()):
            findings.violation(f"{sent}, {sent.operation.error}: stored at {key}@{offset}")
    return findings.judged(len(run.messages.sent), "messages", refused=len(failed))


def duplicated(run: RunData) -> Judgement:
    """A message that was sent once is stored once; one that was repeated after an unknown outcome may lie twice."""
    findings, checked, repeated = Findings(), 0, 0
    for value, places in run.messages.places.items():
        sent = run.messages.sent.get(value)
        if sent is None:
            continue
        checked += 1
        if len(places) > 1 and sent.operation.f in AT_MOST_ONCE:
            findings.violation(f"{sent} lies {_shown(places)}")
        repeated += len(places) - 1
    return findings.judged(checked, "stored messages", copies=repeated)


def idempotent(run: RunData) -> Judgement:
    """An idempotent send is stored once at most, however often it was repeated."""
    findings, checked = Findings(), 0
    for value, places in run.messages.places.items():
        sent = run.messages.sent.get(value)
        if sent is not None and sent.operation.f == "send-idempotent":
            checked += 1
            if len(places) > 1:
                findings.violation(f"{sent} lies {_shown(places)}")
    return findings.judged(checked, "idempotent sends that are stored")


def idempotence_is_promised(run: RunData) -> bool:
    """Brokers remember a send for minutes of the log's time, which a wall clock that jumps may end at once."""
    jumps = any(event.kind == "fault-begin" and event.name == "clock-jump" for event in run.events)
    return not jumps and bool(run.of("append", "send-idempotent"))


def offset_given_twice(run: RunData) -> Judgement:
    """No two acknowledgements name the same queue offset."""
    findings = Findings()
    holders: dict[Place, Sent] = {}
    for sent in run.messages.acknowledged():
        assert sent.place is not None
        first = holders.setdefault(sent.place, sent)
        if first is not sent:
            findings.violation(f"{first.value} and {sent} were given the same offset")
    return findings.judged(len(holders), "acknowledged queue offsets")


def gaps(run: RunData) -> Judgement:
    """Every queue holds a message at each offset from its first to its end, on every node."""
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
    """A batch is stored as a whole, at consecutive offsets of one queue, or not at all."""
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
        if not any(found) or _trimmed(run.messages, values, first_offsets):
            continue
        starts = {(key, offset - number) for number, where in enumerate(found) for key, offset in where}
        if not all(found) or len(starts) > 1:
            stored = sum(map(bool, found))
            findings.violation(
                f"operation {operation.id}: {stored} of {len(values)} messages from {values[0]} on are stored"
            )
    return findings.judged(checked, "batches")


def _trimmed(messages: Messages, values: list[str], first_offsets: dict[str, int]) -> bool:
    place = messages.sent[values[0]].place
    return place is not None and place[1] < first_offsets.get(place[0], 0)


def _shown(places: list[Place]) -> str:
    return ", ".join(f"{key}@{offset}" for key, offset in places)
