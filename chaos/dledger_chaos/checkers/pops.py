"""Checks of pops: the messages that members of groups were shown, and the answers to their acknowledgements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dledger_chaos.history import Operation, Outcome
from dledger_chaos.workloads import grpc, pops
from dledger_chaos.workloads.records import Hidden, Popped, extras

from .base import Findings, Judgement, RunData
from .wrong_clocks import WrongClocks

WORKLOADS: Final = frozenset({pops.NAME, grpc.NAME})
"""Workloads whose pops are judged."""
_ORDERED: Final = frozenset({pops.ORDERED.topic, grpc.ORDERED.topic})

EARLY_NS: Final = 5 * 10**8
"""Tolerance in ns for early showings: brokers compute invisible times from group time, which may be a little behind."""


@dataclass(frozen=True, slots=True)
class _Showing:
    """One message in the answer to one pop."""

    pop: Operation
    message: Popped

    @property
    def at_ns(self) -> int:
        assert self.pop.complete_ns is not None
        return self.pop.complete_ns

    def __str__(self) -> str:
        message = self.message
        return (
            f"{message.value} in {message.queue}@{message.offset} (operation {self.pop.id}, come {message.times} times)"
        )


class _QueueReads:
    """The offsets from which ordered pops read their queues.

    A queue that is popped in order is read again from its lowest unacknowledged message, as in RocketMQ. Acknowledged
    messages behind that message are shown again with it, or later.
    """

    def __init__(self, run: RunData) -> None:
        self._lowest_offsets: dict[str, list[tuple[int, int]]] = {}
        for pop in _sort_ordered_pops(run):
            lowest: dict[str, Popped] = {}
            for message in _decode_popped(pop):
                if message.queue not in lowest or message.offset < lowest[message.queue].offset:
                    lowest[message.queue] = message
            for queue, message in lowest.items():
                self._lowest_offsets.setdefault(queue, []).append((message.pop_time_ms, message.offset))

    def undoes(self, before: _Showing, after: _Showing) -> bool:
        """Return True if the queue was read from below a message after its showing `before`, up to its showing `after`.

        The later showing may then show an acknowledged message again.
        """
        begin, end = before.message.pop_time_ms, after.message.pop_time_ms
        return _is_ordered(after) and any(
            begin < pop_time_ms <= end and offset < after.message.offset
            for pop_time_ms, offset in self._lowest_offsets.get(after.message.queue, ())
        )

    def is_first(self, showing: _Showing) -> bool:
        """Return True if a message is the first of its queue in the answer to an ordered pop."""
        message = showing.message
        return (message.pop_time_ms, message.offset) in self._lowest_offsets.get(message.queue, ())


@dataclass(slots=True)
class _MessageHistory:
    """All recorded operations on one message."""

    showings: list[_Showing] = field(default_factory=list)
    acks: list[Operation] = field(default_factory=list)
    hides: list[tuple[Operation, Popped]] = field(default_factory=list)

    def was_acked(self, before: _Showing | None, showing: _Showing) -> bool:
        """Return True if an acknowledgement was answered before the pop of a showing was sent.

        In an ordered queue only acknowledgements since the showing `before` count.
        """
        since_ns = before.at_ns if before is not None and _is_ordered(showing) else 0
        return any(
            ack.outcome == "ok" and ack.invoke_ns >= since_ns and (ack.complete_ns or math.inf) < showing.pop.invoke_ns
            for ack in self.acks
        )

    @property
    def may_be_acked(self) -> bool:
        """True if an acknowledgement of the message may have taken effect."""
        return any(ack.outcome != "fail" for ack in self.acks)

    def hidden_until_ns(self, showing: _Showing, again: _Showing) -> int:
        """Return the time in ns until which a message is hidden by its pop, or by changes before the next showing."""
        until_ns = _hidden_until_ns(showing.pop)
        for hide, message in self.hides:
            if _delivery_key(message) != _delivery_key(showing.message):
                continue
            if not showing.at_ns <= hide.invoke_ns < again.at_ns:
                continue
            if hide.outcome == "ok":
                until_ns = _hidden_until_ns(hide)
            elif hide.outcome == "info":
                until_ns = min(until_ns, _hidden_until_ns(hide))
        return until_ns


def popped(run: RunData) -> Judgement:
    """Check that a popped message is not shown again within its invisible time or after its acknowledgement.

    Each further showing follows the end of one delivery. At the end the message is acknowledged, unless it was trimmed.
    A queue that is popped in order may show acknowledged messages again, if it is read again from a lower offset.
    """
    findings = Findings()
    messages, clocks, queue_reads = _collect_messages(run), WrongClocks(run), _QueueReads(run)
    unknown = sorted(pop.invoke_ns for pop in _of(run, "pop", outcome="info"))
    again = 0
    for history in messages.values():
        history.showings.sort(key=_showing_order)
        again += max(0, len(history.showings) - 1)
        _judge_repetitions(history, clocks, queue_reads, findings)
        if all(showing.pop.workload == pops.NAME for showing in history.showings):
            _judge_count(history, unknown, queue_reads, findings)  # proxies repeat pops by themselves
        for before, showing in zip((None, *history.showings), history.showings, strict=False):
            is_undone = before is not None and queue_reads.undoes(before, showing)
            if history.was_acked(before, showing) and not is_undone:
                findings.violation(f"{showing} was asked for after its acknowledgement had been answered")
    _judge_unfinished(run, messages, clocks, findings)
    shown = sum(len(history.showings) for history in messages.values())
    return findings.judged(shown, "messages shown by pops", again=again, unanswered_pops=len(unknown))


def in_order(run: RunData) -> Judgement:
    """Check that a queue popped in order shows a message with all earlier messages, or after their acknowledgement."""
    findings, checked = Findings(), 0
    ack_times: dict[str, dict[int, int]] = {}
    for ack in _of(run, "ack"):
        for message in _decode_popped(ack):
            moments = ack_times.setdefault(message.queue, {})
            moments[message.offset] = min(ack.invoke_ns, moments.get(message.offset, ack.invoke_ns))
    shown: dict[str, set[int]] = {}
    for pop in _sort_ordered_pops(run):
        for queue, offsets in _group_by_queue(pop).items():
            checked += len(offsets)
            known = run.messages.queues.get(queue)
            first = known.bounds[0] if known is not None and known.bounds is not None else 0
            new = offsets - shown.setdefault(queue, set())
            shown[queue] |= offsets
            assert pop.complete_ns is not None
            moments = ack_times.get(queue, {})
            for before in range(first, max(new, default=0)):
                if before not in offsets and moments.get(before, math.inf) > pop.complete_ns:
                    findings.violation(
                        f"{queue}: {pop.process} was shown {min(one for one in new if one > before)} (operation "
                        f"{pop.id}) when {before} was not acknowledged"
                    )
                    break
    return findings.judged(checked, "messages shown in order")


def _of(run: RunData, *functions: str, outcome: Outcome | None = None) -> list[Operation]:
    """Return the operations of all these workloads, in the order of their calls."""
    found = [each for name in sorted(WORKLOADS) for each in run.of(name, *functions, outcome=outcome)]
    return sorted(found, key=lambda operation: operation.id)


def _collect_messages(run: RunData) -> dict[str, _MessageHistory]:
    messages: dict[str, _MessageHistory] = {}
    for operation in _of(run, "pop", "ack", "hide"):
        if operation.f == "hide":
            message = msgspec.convert(operation.value, Popped)
            messages.setdefault(message.value, _MessageHistory()).hides.append((operation, message))
            continue
        for message in _decode_popped(operation):
            known = messages.setdefault(message.value, _MessageHistory())
            if operation.f == "ack":
                known.acks.append(operation)
            elif operation.outcome == "ok":
                known.showings.append(_Showing(operation, message))
    return messages


def _judge_repetitions(
    history: _MessageHistory, clocks: WrongClocks, queue_reads: _QueueReads, findings: Findings
) -> None:
    """Judge that no delivery shows a message twice, or before the previous invisible time has ended."""
    for before, after in zip(history.showings, history.showings[1:], strict=False):
        is_same_delivery = before.message.pop_time_ms == after.message.pop_time_ms
        if _delivery_key(before.message) == _delivery_key(after.message) and (
            is_same_delivery or not _is_ordered(after)
        ):
            findings.violation(f"{after} was shown before, by operation {before.pop.id}")
        elif before.message.times == after.message.times and _delivery_key(before.message) != _delivery_key(
            after.message
        ):
            findings.violation(f"{after} was delivered again twice (operation {before.pop.id})")
        early_ns = history.hidden_until_ns(before, after) - EARLY_NS - after.at_ns
        is_undone = history.may_be_acked and queue_reads.undoes(before, after)
        if early_ns > 0 and not is_undone and not clocks.may_mislead(before.pop.invoke_ns, after.at_ns):
            findings.violation(
                f"{after} was shown {early_ns / 1e9:.2f} s before its time by operation {before.pop.id} was over"
            )


def _judge_count(history: _MessageHistory, unknown: list[int], queue_reads: _QueueReads, findings: Findings) -> None:
    """Judge that a message with count n was shown n times before, except for pops whose answers were lost.

    In an ordered queue, the first message determines the count, and all messages behind it are shown with this count.
    """
    for showing in history.showings:
        if _is_ordered(showing) and not queue_reads.is_first(showing):
            continue
        asked_ns = showing.at_ns
        known = {each.message.times for each in history.showings if each.pop.invoke_ns < asked_ns}
        missing = sum(times not in known for times in range(showing.message.times))
        if missing > sum(moment < asked_ns for moment in unknown):
            findings.violation(f"{showing} counts {missing} deliveries that no pop has shown")


def _judge_unfinished(
    run: RunData, messages: dict[str, _MessageHistory], clocks: WrongClocks, findings: Findings
) -> None:
    """Judge that each message that was sent is acknowledged by a member, unless it or its copy was trimmed."""
    kept = _of(run, "kept", outcome="ok")
    copies_are_trimmed = any(msgspec.convert(queue.value, tuple[int, int])[0] for queue in kept)
    for sent in run.messages.acknowledged():
        if sent.operation.workload not in WORKLOADS or sent.place is None:
            continue
        history = messages.get(sent.value, _MessageHistory())
        if history.may_be_acked or clocks.may_mislead(sent.operation.invoke_ns, run.info.end_ns):
            continue
        queue = run.messages.queues.get(sent.place[0])
        is_trimmed = queue is not None and queue.bounds is not None and sent.place[1] < queue.bounds[0]
        if not is_trimmed and not copies_are_trimmed:
            findings.violation(f"{sent} was shown {len(history.showings)} times, and never acknowledged")


def _sort_ordered_pops(run: RunData) -> Iterable[Operation]:
    """Return the ordered pops that returned messages, in the order of their pop times."""
    pops_with_messages = [pop for pop in _of(run, "pop", outcome="ok") if pop.key in _ORDERED and pop.value]
    return sorted(pops_with_messages, key=lambda pop: min(message.pop_time_ms for message in _decode_popped(pop)))


def _group_by_queue(pop: Operation) -> dict[str, set[int]]:
    queues: dict[str, set[int]] = {}
    for message in _decode_popped(pop):
        queues.setdefault(message.queue, set()).add(message.offset)
    return queues


def _decode_popped(operation: Operation) -> list[Popped]:
    return msgspec.convert(operation.value, list[Popped])


def _delivery_key(message: Popped) -> tuple[str, int, int]:
    return message.queue, message.offset, message.times


def _showing_order(showing: _Showing) -> tuple[int, int]:
    """Return the sort key of showings. In an ordered queue, the count restarts with each new first message."""
    return 0 if _is_ordered(showing) else showing.message.times, showing.message.pop_time_ms


def _is_ordered(showing: _Showing) -> bool:
    return showing.pop.key in _ORDERED


def _hidden_until_ns(operation: Operation) -> int:
    """Return the end in ns of the requested invisible time, counted from the call."""
    return operation.invoke_ns + extras(operation, Hidden).invisible_ms * 10**6
