"""Checks of queue locks, and of the ordered consumers that hold them."""

from __future__ import annotations

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads import locks, orderly
from dledger_chaos.workloads.records import Seen
from dledger_sim.seen.locks import check_owners

from .base import Findings, Judgement, RunData


def one_owner(run: RunData) -> Judgement:
    """Check that no two members rely on the lock of one queue at the same time.

    A member relies on a lock from the answer that grants it, until `BELIEF_S` after it sent the request. Without an
    answer it does not rely on the lock.
    """
    return check_owners(run.of(locks.NAME, "lock", "unlock"), int(locks.BELIEF_S * 1e9))


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
