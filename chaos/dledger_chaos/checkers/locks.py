"""Checks of queue locks, and of what ordered consumers do with them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads import locks, orderly
from dledger_chaos.workloads.records import Seen

from .base import Findings, Judgement, RunData


@dataclass(frozen=True, slots=True)
class _Belief:
    """A member takes a queue for its own until then."""

    granted: Operation
    until_ns: int


def one_owner(run: RunData) -> Judgement:
    """No two members believe in the lock of one queue at a time.

    A member believes from the answer that grants it until `BELIEF_S` after it sent the request, or until it gives the
    lock up. What it was not answered it does not believe in.
    """
    findings, checked = Findings(), 0
    moments: list[tuple[int, Operation]] = []
    for operation in run.of(locks.NAME, "lock", "unlock"):
        if operation.f == "unlock":
            moments.append((operation.invoke_ns, operation))
        elif operation.outcome == "ok":
            assert operation.complete_ns is not None
            moments.append((operation.complete_ns, operation))
    beliefs: dict[str, _Belief] = {}
    for now_ns, operation in sorted(moments, key=lambda moment: (moment[0], moment[1].f != "unlock")):
        known = beliefs.get(operation.key)
        if operation.f == "unlock":
            if known is not None and known.granted.process == operation.process:
                del beliefs[operation.key]
            continue
        checked += 1
        until_ns = operation.invoke_ns + int(locks.BELIEF_S * 1e9)
        if known is not None and known.granted.process != operation.process and now_ns < known.until_ns:
            findings.violation(
                f"{operation.key} was granted to {operation.process} (operation {operation.id}), and "
                f"{known.granted.process} believes in it for {(known.until_ns - now_ns) / 1e9:.1f} s more "
                f"(operation {known.granted.id})"
            )
        elif known is not None and known.granted.process == operation.process:
            until_ns = max(until_ns, known.until_ns)
        beliefs[operation.key] = _Belief(operation, until_ns)
    members = {operation.process for _, operation in moments}
    return findings.judged(checked, "grants of locks", members=len(members))


def handled_in_order(run: RunData) -> Judgement:
    """An ordered consumer's queue is handled by one member at a time, and each message once those before it are done.

    A message that was trimmed before anybody got to it is passed over.
    """
    findings, checked = Findings(), 0
    queues: dict[str, list[Operation]] = {}
    for operation in run.of(orderly.NAME, "deliver"):
        queues.setdefault(operation.key, []).append(operation)
    for key, handlings in queues.items():
        queue = run.messages.queues.get(key)
        first = queue.bounds[0] if queue is not None and queue.bounds is not None else 0
        before: Operation | None = None
        done = -1
        for handling in sorted(handlings, key=lambda one: one.invoke_ns):
            checked += 1
            offset = _offset(handling)
            if before is not None and (before.complete_ns is None or handling.invoke_ns < before.complete_ns):
                findings.violation(
                    f"{key}: {handling.process} began with offset {offset} (operation {handling.id}) while "
                    f"{before.process} was at {_offset(before)} (operation {before.id})"
                )
            if offset > max(done + 1, first):
                findings.violation(
                    f"{key}: {handling.process} began with offset {offset} (operation {handling.id}) when those up to "
                    f"{done} were done"
                )
            if handling.outcome == "ok":
                done = max(done, offset)
            before = handling
    return findings.judged(checked, "handlings")


def _offset(handling: Operation) -> int:
    return msgspec.convert(handling.value, Seen).offset
