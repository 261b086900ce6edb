"""Checks of consumer offsets, and of what a consumer group was given."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads.records import Seen

from .base import Findings, Judgement, RunData

GROUPS: Final = ("consumers", "cpp")
"""Workloads with a consumer group that is to be given everything."""


def offset_back(run: RunData) -> Judgement:
    """A committed offset that only rises is never read lower than what was acknowledged, or read, before.

    Nor is anything read that nobody committed. Each key has one committer, which does one thing at a time.
    """
    findings, checked = Findings(), 0
    at_least: dict[str, Operation] = {}
    attempted: dict[str, set[int]] = {}
    for operation in run.of("offsets", "commit", "committed"):
        key = operation.key
        if operation.f == "commit":
            attempted.setdefault(key, set()).add(_offset(operation))
            if operation.outcome == "ok":
                at_least[key] = operation
            continue
        if operation.outcome != "ok":
            if operation.process.startswith("final"):
                findings.doubt(f"the offset of {key} could not be read at the end")
            continue
        checked += 1
        known = at_least.get(key)
        if operation.value is None:
            if known is not None:
                findings.violation(
                    f"{key}: none, after {known.f} {known.value} (operations {known.id}, {operation.id})"
                )
            continue
        if known is not None and _offset(operation) < _offset(known):
            findings.violation(
                f"{key}: {operation.value} after {known.f} {known.value} (operations {known.id}, {operation.id})"
            )
        elif _offset(operation) not in attempted.get(key, ()):
            findings.violation(f"{key}: {operation.value} was never committed (operation {operation.id})")
        else:
            at_least[key] = operation
    return findings.judged(checked, "reads of committed offsets")


def undelivered(run: RunData) -> Judgement:
    """A consumer group is given every acknowledged message, and nothing below its committed offset is skipped."""
    findings = Findings()
    given: dict[str, set[int]] = {}
    deliveries = 0
    for workload in GROUPS:
        for operation in run.of(workload, "deliver", outcome="ok"):
            deliveries += 1
            given.setdefault(operation.key, set()).add(_seen(operation).offset)
    first = {queue.key: queue.bounds[0] for queue in run.messages.queues.values() if queue.bounds}
    acknowledged = [sent for sent in run.messages.acknowledged() if sent.operation.workload in GROUPS]
    for sent in acknowledged:
        assert sent.place is not None
        queue, offset = sent.place
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


def _offset(operation: Operation) -> int:
    return msgspec.convert(operation.value, int)


def _seen(operation: Operation) -> Seen:
    return msgspec.convert(operation.value, Seen)
