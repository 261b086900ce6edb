"""Checks of what the members of consumer groups were given."""

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
"""Workloads with a consumer group that is to be given everything."""


def undelivered(run: RunData) -> Judgement:
    """A consumer group is given every acknowledged message, and nothing below its committed offset is skipped."""
    findings = Findings()
    given: dict[str, set[int]] = {}
    deliveries = 0
    for workload in GROUPS:
        for operation in run.of(workload, "deliver", outcome="ok"):
            deliveries += 1
            given.setdefault(operation.key, set()).add(_seen(operation).offset)
    first = _first_offsets(run)
    acknowledged = [sent for sent in run.messages.acknowledged() if sent.operation.workload in GROUPS]
    for sent in acknowledged:
        queue, offset = _place(sent)
        if offset >= first.get(queue, 0) and offset not in given.get(queue, ()):
            findings.violation(f"{sent} was given to no member")
    known = run.of("consumers", "group-offsets", outcome="ok")
    if not known and "consumers" in run.info.workloads:
        findings.doubt("the group's committed offsets could not be read")
    for operation in known:
        for queue, committed in msgspec.convert(operation.value, list[tuple[str, int | None]]):
            missing = set(range(first.get(queue, 0), committed or 0)) - given.get(queue, set())
            if missing:
                findings.violation(
                    f"{queue}: {committed} is committed, {len(missing)} offsets below were given to no member, "
                    f"the first is {min(missing)}"
                )
    repeated = deliveries - sum(map(len, given.values()))
    return findings.judged(len(acknowledged), "acknowledged messages", deliveries=deliveries, repeated=repeated)


def delivered_out_of_order(run: RunData) -> Judgement:
    """The first deliveries of a queue's messages, over all members, come in the order of the queue."""
    findings, checked = Findings(), 0
    highest: dict[str, Operation] = {}
    given: set[tuple[str, int]] = set()
    for operation in run.of("consumers", "deliver", outcome="ok"):
        place = operation.key, _seen(operation).offset
        if place in given:
            continue
        given.add(place)
        checked += 1
        before = highest.get(operation.key)
        if before is not None and _seen(before).offset > place[1]:
            findings.violation(
                f"{operation.key}@{place[1]} was first given to {operation.process} (operation {operation.id}), after "
                f"offset {_seen(before).offset} (operation {before.id})"
            )
        highest[operation.key] = operation
    return findings.judged(checked, "first deliveries")


def filtered(run: RunData) -> Judgement:
    """Each group that filters is given every acknowledged message that its filter takes, and no other."""
    findings, checked = Findings(), 0
    given: dict[str, set[Place]] = {name: set() for name in TAKERS}
    for operation in run.of("filtered", "deliver", outcome="ok"):
        name = operation.process.partition("-")[0]
        one = _seen(operation)
        given[name].add((operation.key, one.offset))
        if one.value in run.messages.sent and not TAKERS[name].wants(one.value):  # what nobody sent convicts elsewhere
            findings.violation(f"{one.value} was given to {operation.process}, whose filter leaves it out")
    for sent in _kept(run, "filtered"):
        for name, taker in TAKERS.items():
            if taker.wants(sent.value):
                checked += 1
                if sent.place not in given[name]:
                    findings.violation(f"{sent} was given to no member of {taker.group}, whose filter takes it")
    return findings.judged(checked, "messages that a filter takes", deliveries=sum(map(len, given.values())))


def broadcast(run: RunData) -> Judgement:
    """Each member that broadcasts is given every acknowledged message."""
    findings, checked = Findings(), 0
    given: dict[str, set[Place]] = {member: set() for member in MEMBERS}
    for operation in run.of("broadcast", "deliver", outcome="ok"):
        given[operation.process].add((operation.key, _seen(operation).offset))
    for sent in _kept(run, "broadcast"):
        for member, places in given.items():
            checked += 1
            if sent.place not in places:
                findings.violation(f"{sent} was not given to {member}")
    return findings.judged(checked, "messages for a member", deliveries=sum(map(len, given.values())))


def _kept(run: RunData, workload: str) -> list[Sent]:
    """The acknowledged messages of a workload that no trim has taken."""
    first = _first_offsets(run)
    acknowledged = (sent for sent in run.messages.acknowledged() if sent.operation.workload == workload)
    return [sent for sent in acknowledged if _place(sent)[1] >= first.get(_place(sent)[0], 0)]


def _first_offsets(run: RunData) -> dict[str, int]:
    """The first offset of each queue that is still there."""
    return {queue.key: queue.bounds[0] for queue in run.messages.queues.values() if queue.bounds}


def _place(sent: Sent) -> Place:
    assert sent.place is not None
    return sent.place


def _seen(operation: Operation) -> Seen:
    return msgspec.convert(operation.value, Seen)
