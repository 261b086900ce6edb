"""Checks of messages that are popped: what members of groups were shown, and told, of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dledger_chaos.history import Operation
from dledger_chaos.workloads import pops
from dledger_chaos.workloads.records import Hidden, Popped, extras

from .base import Findings, Judgement, RunData
from .wrong_clocks import WrongClocks

EARLY_NS: Final = 5 * 10**8
"""An invisible time is reckoned from group time, which may be a little behind."""


@dataclass(frozen=True, slots=True)
class _Showing:
    """A pop has brought a message."""

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


@dataclass(slots=True)
class _Message:
    """Everything that is known of one message."""

    showings: list[_Showing] = field(default_factory=list)
    acks: list[Operation] = field(default_factory=list)
    hides: list[tuple[Operation, Popped]] = field(default_factory=list)

    @property
    def acked_ns(self) -> float:
        """When its acknowledgement was answered first."""
        return min((ack.complete_ns for ack in self.acks if ack.outcome == "ok" and ack.complete_ns), default=math.inf)

    @property
    def may_be_acked(self) -> bool:
        """Whether an acknowledgement of it has taken effect, as far as anybody knows."""
        return any(ack.outcome != "fail" for ack in self.acks)

    def hidden_until_ns(self, showing: _Showing, again: _Showing) -> int:
        """Until when nobody else is to be shown what a pop has brought, as its member hid it before it came again."""
        until_ns = _end_of(showing.pop)
        for hide, message in self.hides:
            if _place_of(message) != _place_of(showing.message):
                continue
            if not showing.at_ns <= hide.invoke_ns < again.at_ns:
                continue
            if hide.outcome == "ok":
                until_ns = _end_of(hide)
            elif hide.outcome == "info":
                until_ns = min(until_ns, _end_of(hide))
        return until_ns


def popped(run: RunData) -> Judgement:
    """A popped message is shown to nobody else within its invisible time and never after an answered acknowledgement;
    each time that it comes again one delivery is over; in the end it was acknowledged, unless a trim took it.
    """
    findings = Findings()
    messages, clocks = _messages(run), WrongClocks(run)
    unknown = sorted(pop.invoke_ns for pop in run.of(pops.NAME, "pop", outcome="info"))
    again = 0
    for one in messages.values():
        one.showings.sort(key=lambda showing: (showing.message.times, showing.message.pop_time_ms))
        again += max(0, len(one.showings) - 1)
        _judge_repetitions(one, clocks, findings)
        _judge_count(one, unknown, findings)
        acked_ns = one.acked_ns
        for showing in one.showings:
            if showing.pop.invoke_ns > acked_ns:
                findings.violation(f"{showing} was asked for after its acknowledgement had been answered")
    _judge_rest(run, messages, clocks, findings)
    shown = sum(len(one.showings) for one in messages.values())
    return findings.judged(shown, "messages shown by pops", again=again, unanswered_pops=len(unknown))


def in_order(run: RunData) -> Judgement:
    """A queue that is popped in order shows a message once all before it were acknowledged, or together with them."""
    findings, checked = Findings(), 0
    asked: dict[str, dict[int, int]] = {}
    for ack in run.of(pops.NAME, "ack"):
        for message in _popped_of(ack):
            moments = asked.setdefault(message.queue, {})
            moments[message.offset] = min(ack.invoke_ns, moments.get(message.offset, ack.invoke_ns))
    seen: dict[str, set[int]] = {}
    for pop in _by_pop_time(run):
        for queue, offsets in _queues_of(pop).items():
            checked += len(offsets)
            known = run.messages.queues.get(queue)
            first = known.bounds[0] if known is not None and known.bounds is not None else 0
            new = offsets - seen.setdefault(queue, set())
            seen[queue] |= offsets
            assert pop.complete_ns is not None
            moments = asked.get(queue, {})
            for before in range(first, max(new, default=0)):
                if before not in offsets and moments.get(before, math.inf) > pop.complete_ns:
                    findings.violation(
                        f"{queue}: {pop.process} was shown {min(one for one in new if one > before)} (operation "
                        f"{pop.id}) when {before} was not acknowledged"
                    )
                    break
    return findings.judged(checked, "messages shown in order")


def _messages(run: RunData) -> dict[str, _Message]:
    messages: dict[str, _Message] = {}
    for operation in run.of(pops.NAME, "pop", "ack", "hide"):
        if operation.f == "hide":
            message = msgspec.convert(operation.value, Popped)
            messages.setdefault(message.value, _Message()).hides.append((operation, message))
            continue
        for message in _popped_of(operation):
            known = messages.setdefault(message.value, _Message())
            if operation.f == "ack":
                known.acks.append(operation)
            elif operation.outcome == "ok":
                known.showings.append(_Showing(operation, message))
    return messages


def _judge_repetitions(one: _Message, clocks: WrongClocks, findings: Findings) -> None:
    """No message is shown twice by one delivery, nor again before the invisible time of the last one was over."""
    for before, after in zip(one.showings, one.showings[1:], strict=False):
        is_same_delivery = before.message.pop_time_ms == after.message.pop_time_ms
        if _place_of(before.message) == _place_of(after.message) and (is_same_delivery or not _is_ordered(after)):
            findings.violation(f"{after} was shown before, by operation {before.pop.id}")
        elif before.message.times == after.message.times and _place_of(before.message) != _place_of(after.message):
            findings.violation(f"{after} comes again twice, see operation {before.pop.id}")
        early_ns = one.hidden_until_ns(before, after) - EARLY_NS - after.at_ns
        if early_ns > 0 and not clocks.may_mislead(before.pop.invoke_ns, after.at_ns):
            findings.violation(
                f"{after} was shown {early_ns / 1e9:.2f} s before its time by operation {before.pop.id} was over"
            )


def _judge_count(one: _Message, unknown: list[int], findings: Findings) -> None:
    """A message that has come n times was shown n times before, but for pops whose answers nobody saw."""
    for showing in one.showings:
        asked_ns = showing.at_ns
        known = {each.message.times for each in one.showings if each.pop.invoke_ns < asked_ns}
        missing = sum(times not in known for times in range(showing.message.times))
        if missing > sum(moment < asked_ns for moment in unknown):
            findings.violation(f"{showing} came {missing} times after nobody had been shown it")


def _judge_rest(run: RunData, messages: dict[str, _Message], clocks: WrongClocks, findings: Findings) -> None:
    """What was acknowledged as sent was acknowledged as popped, unless a trim took it, or its copy."""
    kept = run.of(pops.NAME, "kept", outcome="ok")
    copies_are_trimmed = any(msgspec.convert(queue.value, tuple[int, int])[0] for queue in kept)
    for sent in run.messages.acknowledged():
        if sent.operation.workload != pops.NAME or sent.place is None:
            continue
        one = messages.get(sent.value, _Message())
        if one.may_be_acked or clocks.may_mislead(sent.operation.invoke_ns, run.info.end_ns):
            continue
        queue = run.messages.queues.get(sent.place[0])
        is_trimmed = queue is not None and queue.bounds is not None and sent.place[1] < queue.bounds[0]
        if not is_trimmed and not copies_are_trimmed:
            findings.violation(f"{sent} was shown {len(one.showings)} times, and never acknowledged")


def _by_pop_time(run: RunData) -> Iterable[Operation]:
    """The pops in order that have brought something, as they followed each other."""
    found = [pop for pop in run.of(pops.NAME, "pop", outcome="ok") if pop.key == pops.ORDERED.topic and pop.value]
    return sorted(found, key=lambda pop: min(message.pop_time_ms for message in _popped_of(pop)))


def _queues_of(pop: Operation) -> dict[str, set[int]]:
    queues: dict[str, set[int]] = {}
    for message in _popped_of(pop):
        queues.setdefault(message.queue, set()).add(message.offset)
    return queues


def _popped_of(operation: Operation) -> list[Popped]:
    return msgspec.convert(operation.value, list[Popped])


def _place_of(message: Popped) -> tuple[str, int, int]:
    return message.queue, message.offset, message.times


def _is_ordered(showing: _Showing) -> bool:
    return showing.pop.key == pops.ORDERED.topic


def _end_of(operation: Operation) -> int:
    """When the invisible time is over that an operation asked for, if it began at once."""
    return operation.invoke_ns + extras(operation, Hidden).invisible_ms * 10**6
