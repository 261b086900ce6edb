"""Checks of queue locks, and of the ordered consumers that hold them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads import locks, orderly
from dledger_chaos.workloads.records import Seen

from .base import Findings, Judgement, RunData


@dataclass(frozen=True, slots=True)
class _Belief:
    """The belief of a member, until `until_ns`, that it has the lock of a queue."""

    granted: Operation
    until_ns: int


def one_owner(run: RunData) -> Judgement:
    """Check that no two members rely on the lock of one queue at the same time.

    A member relies on a lock from the answer that grants it, until `BELIEF_S` after it sent the request. Without an
    answer it does not rely on the lock.
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
        belief = beliefs.get(operation.key)
        if operation.f == "unlock":
            if belief is not None and belief.granted.process == operation.process:
                del beliefs[operation.key]
            continue
        checked += 1
        until_ns = operation.invoke_ns + int(locks.BELIEF_S * 1e9)
        if belief is not None and belief.granted.process != operation.process and now_ns < belief.until_ns:
            findings.violation(
                f"{operation.key} was granted to {operation.process} (operation {operation.id}), and "
                f"{belief.granted.process} relies on the lock for {(belief.until_ns - now_ns) / 1e9:.1f} s more "
                f"(operation {belief.granted.id})"
            )
        elif belief is not None and belief.granted.process == operation.process:
            until_ns = max(until_ns, belief.until_ns)
        beliefs[operation.key] = _Belief(operation, until_ns)
    members = {operation.process for _, operation in moments}
    return findings.judged(checked, "grants of locks", members=len(members))


def handled_in_order(run: RunData) -> Judgement:
    """Check that one member at a time handles an ordered consumer's queue, in the queue's order.

    A message that was trimmed before a member could handle it is skipped.
    """
    findings, checked = Findings(), 0
    queues: dict[str, list[Operation]] = {}
    for operation in run.of(orderly.NAME, "deliver"):
        queues.setdefault(operation.key, []).append(operation)
    for key, handlings in queues.items():
        queue = run.messages.queues.get(key)
        first = queue.bounds[0] if queue is not None and queue.bounds is not None else 0
        previous: Operation | None = None
        last_handled = -1
        for handling in sorted(handlings, key=lambda one: one.invoke_ns):
            checked += 1
            offset = _decode_offset(handling)
            if previous is not None and (previous.complete_ns is None or handling.invoke_ns < previous.complete_ns):
                findings.violation(
                    f"{key}: {handling.process} began with offset {offset} (operation {handling.id}) while "
                    f"{previous.process} was at {_decode_offset(previous)} (operation {previous.id})"
                )
            if offset > max(last_handled + 1, first):
                findings.violation(
                    f"{key}: {handling.process} began with offset {offset} (operation {handling.id}) when those up to "
                    f"{last_handled} were done"
                )
            if handling.outcome == "ok":
                last_handled = max(last_handled, offset)
            previous = handling
    return findings.judged(checked, "handlings")


def _decode_offset(handling: Operation) -> int:
    return msgspec.convert(handling.value, Seen).offset
