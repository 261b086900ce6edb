"""Checks of the messages that were delivered to members of consumer groups."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads.broadcast import MEMBERS
from dledger_chaos.workloads.filtered import TAKERS
from dledger_chaos.workloads.records import Seen

from .base import Findings, Judgement, RunData
from .messages import Place, Sent

GROUPS: Final = ("consumers", "orderly", "cpp")
"""Workloads with a consumer group that consumes all messages."""


def undelivered(run: RunData) -> Judgement:
    """Check that a group is given every acknowledged message, and skips nothing below its committed offset."""
    findings = Findings()
    delivered: dict[str, set[int]] = {}
    deliveries = 0
    for workload in GROUPS:
        for operation in run.of(workload, "deliver", outcome="ok"):
            deliveries += 1
            delivered.setdefault(operation.key, set()).add(_decode_seen(operation).offset)
    first_offsets = _find_first_offsets(run)
    acknowledged = [sent for sent in run.messages.acknowledged() if sent.operation.workload in GROUPS]
    for sent in acknowledged:
        queue, offset = _require_place(sent)
        if offset >= first_offsets.get(queue, 0) and offset not in delivered.get(queue, ()):
            findings.violation(f"{sent} was given to no member")
    committed_reads = run.of("consumers", "group-offsets", outcome="ok")
    if not committed_reads and "consumers" in run.info.workloads:
        findings.doubt("the group's committed offsets could not be read")
    for operation in committed_reads:
        for queue, committed in msgspec.convert(operation.value, list[tuple[str, int | None]]):
            missing = set(range(first_offsets.get(queue, 0), committed or 0)) - delivered.get(queue, set())
            if missing:
                findings.violation(
                    f"{queue}: {committed} is committed, {len(missing)} offsets below were given to no member, "
                    f"the first is {min(missing)}"
                )
    repeated = deliveries - sum(map(len, delivered.values()))
    return findings.judged(len(acknowledged), "acknowledged messages", deliveries=deliveries, repeated=repeated)


def delivered_out_of_order(run: RunData) -> Judgement:
    """Check that the first deliveries of a queue's messages, over all members, are in the order of the queue."""
    findings, checked = Findings(), 0
    highest: dict[str, Operation] = {}
    delivered: set[tuple[str, int]] = set()
    for operation in run.of("consumers", "deliver", outcome="ok"):
        place = operation.key, _decode_seen(operation).offset
        if place in delivered:
            continue
        delivered.add(place)
        checked += 1
        previous = highest.get(operation.key)
        if previous is not None and _decode_seen(previous).offset > place[1]:
            findings.violation(
                f"{operation.key}@{place[1]} was first given to {operation.process} (operation {operation.id}), after "
                f"offset {_decode_seen(previous).offset} (operation {previous.id})"
            )
        highest[operation.key] = operation
    return findings.judged(checked, "first deliveries")


def filtered(run: RunData) -> Judgement:
    """Check that each group is given exactly the acknowledged messages that match its filter."""
    findings, checked = Findings(), 0
    delivered: dict[str, set[Place]] = {name: set() for name in TAKERS}
    for operation in run.of("filtered", "deliver", outcome="ok"):
        name = operation.process.partition("-")[0]
        message = _decode_seen(operation)
        delivered[name].add((operation.key, message.offset))
        if message.value in run.messages.sent and not TAKERS[name].wants(message.value):  # others judge unsent ones
            findings.violation(f"{message.value} was given to {operation.process}, whose filter leaves it out")
    for sent in kept(run, "filtered"):
        for name, taker in TAKERS.items():
            if taker.wants(sent.value):
                checked += 1
                if sent.place not in delivered[name]:
                    findings.violation(f"{sent} was given to no member of {taker.group}, whose filter takes it")
    return findings.judged(checked, "messages that a filter takes", deliveries=sum(map(len, delivered.values())))


def broadcast(run: RunData) -> Judgement:
    """Check that each broadcasting member is given every acknowledged message."""
    findings, checked = Findings(), 0
    delivered: dict[str, set[Place]] = {member: set() for member in MEMBERS}
    for operation in run.of("broadcast", "deliver", outcome="ok"):
        delivered[operation.process].add((operation.key, _decode_seen(operation).offset))
    for sent in kept(run, "broadcast"):
        for member, places in delivered.items():
            checked += 1
            if sent.place not in places:
                findings.violation(f"{sent} was not given to {member}")
    return findings.judged(checked, "messages for a member", deliveries=sum(map(len, delivered.values())))


def kept(run: RunData, workload: str) -> list[Sent]:
    """Return the acknowledged messages of a workload that no trim has removed."""
    first_offsets = _find_first_offsets(run)
    acknowledged = (sent for sent in run.messages.acknowledged() if sent.operation.workload == workload)
    return [sent for sent in acknowledged if _require_place(sent)[1] >= first_offsets.get(_require_place(sent)[0], 0)]


def _find_first_offsets(run: RunData) -> dict[str, int]:
    """Return the first offset of each queue that still exists."""
    return {queue.key: queue.bounds[0] for queue in run.messages.queues.values() if queue.bounds}


def _require_place(sent: Sent) -> Place:
    assert sent.place is not None
    return sent.place


def _decode_seen(operation: Operation) -> Seen:
    return msgspec.convert(operation.value, Seen)
