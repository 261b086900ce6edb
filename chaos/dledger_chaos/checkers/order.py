"""Checks of the order of stored messages."""

from __future__ import annotations

from .base import Findings, Judgement, RunData
from .messages import Sent


def reordered(run: RunData) -> Judgement:
    """Check that a message sent after an acknowledgement lies behind the acknowledged message in their queue."""
    findings = Findings()
    queues: dict[str, list[tuple[int, Sent]]] = {}
    for sent in run.messages.acknowledged():
        assert sent.place is not None
        queues.setdefault(sent.place[0], []).append((sent.place[1], sent))
    for value, places in run.messages.places.items():
        stored = run.messages.sent.get(value)
        for key, offset in places:
            if stored is not None and stored.place != (key, offset):
                queues.setdefault(key, []).append((offset, stored))
    checked = 0
    for key, messages in queues.items():
        messages.sort(key=lambda message: message[0])
        checked += len(messages)
        earliest: Sent | None = None  # the message at a higher offset that was acknowledged first
        for offset, sent in reversed(messages):
            if earliest is not None and _get_complete_ns(earliest) < sent.operation.invoke_ns:
                findings.violation(
                    f"{sent} was sent after {earliest} was acknowledged, but lies before it, at {key}@{offset}"
                )
            if sent.place == (key, offset) and (
                earliest is None or _get_complete_ns(sent) < _get_complete_ns(earliest)
            ):
                earliest = sent
    return findings.judged(checked, "messages")


def reordered_by_key(run: RunData) -> Judgement:
    """Check that messages with one ordering key lie in one queue, in the order of the calls.

    A message may lie twice, because attempts are repeated. Its first copy counts.
    """
    findings, checked = Findings(), 0
    places = run.messages.places
    last: dict[str, tuple[Sent, str, int]] = {}
    calls = (sent for sent in run.messages.acknowledged() if sent.operation.f == "send-ordered")
    for sent in sorted(calls, key=lambda sent: sent.operation.id):
        where = places.get(sent.value)
        if not where:
            continue  # the check `lost` judges messages that are not found
        checked += 1
        queue, offset = min(where, key=lambda place: place[1])
        before = last.get(sent.operation.key)
        if before is not None and (before[1] != queue or before[2] > offset):
            findings.violation(
                f"key {sent.operation.key}: {sent.value} lies first at {queue}@{offset}, "
                f"{before[0].value}, which was sent before it, at {before[1]}@{before[2]}"
            )
        last[sent.operation.key] = sent, queue, offset
    return findings.judged(checked, "acknowledged messages with an ordering key", keys=len(last))


def _get_complete_ns(sent: Sent) -> int:
    return sent.operation.complete_ns or 0
