"""Checks of transactions: what became of halves beside what their producers have asked for and were told."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_chaos.history import Operation
from dledger_chaos.workloads import transactions
from dledger_remoting.codes import ResponseCode

from .base import Findings, Judgement, RunData
from .shown import Shown
from .wrong_clocks import WrongClocks


@dataclass(slots=True)
class _Transaction:
    """A half, what its producers asked for, and what they answered when they were asked."""

    sent: Operation
    ends: list[Operation] = field(default_factory=list)
    checks: list[Operation] = field(default_factory=list)

    @property
    def value(self) -> str:
        return str(self.sent.value)

    def asked_ns(self, wish: str) -> int | None:
        """When anybody first asked for a commit, or a rollback."""
        return min((one.invoke_ns for one in (*self.ends, *self.checks) if one.value == wish), default=None)

    def was_told(self, wish: str) -> bool:
        """Whether a producer was told that it is committed, or rolled back."""
        return any(end.value == wish and end.outcome == "ok" for end in self.ends)

    def was_shown_too_early(self, shown_ns: int | None) -> bool:
        """Whether it was shown then though nobody had asked for its commit."""
        asked_ns = self.asked_ns("commit")
        return shown_ns is not None and (asked_ns is None or shown_ns < asked_ns)

    def why_gone(self) -> str:
        """What was answered at the end to the only wish that there ever was; empty if that could be had."""
        for end in self.ends:
            is_refused = end.outcome == "fail" and end.code == ResponseCode.SYSTEM_ERROR
            if end.process == transactions.FINAL and is_refused and self.sent.outcome == "ok":
                other = "rollback" if end.value == "commit" else "commit"
                return end.error if self.asked_ns(other) is None else ""
        return ""


def half(run: RunData) -> Judgement:
    """Nobody is shown a transaction before its commit is asked for, nor one that was rolled back; one whose commit was
    acknowledged is there once. What was acknowledged as a half can be ended, unless a full disk has cost it.
    """
    findings = Findings()
    shown = Shown.to_readers_of(run, transactions.NAME)
    known, may_be_lost = _transactions(run), _disk_was_full(run)
    for one in known.values():
        places = sorted(shown.places.get(one.value, ()))
        if one.was_shown_too_early(shown.first_ns.get(one.value)):
            findings.violation(f"{one.value} was there before anybody asked for its commit")
        if len(places) > 1:
            findings.violation(f"{one.value} lies at {', '.join(f'{key}@{offset}' for key, offset in places)}")
        if one.was_told("rollback") and (places or one.was_told("commit")):
            findings.violation(f"{one.value} was said to be rolled back, and is committed")
        if one.was_told("commit") and not places and shown.are_whole(run, one.sent.key):
            findings.violation(f"{one.value} was said to be committed, and is nowhere")
        if (refusal := one.why_gone()) and not may_be_lost:
            findings.violation(f"{one.value} was acknowledged, and cannot be ended: {refusal}")
    for look in run.of(transactions.NAME, "find-half", outcome="ok"):
        if look.value and known[look.key].was_shown_too_early(look.complete_ns):
            findings.violation(f"{look.key} was found by its key before anybody asked for its commit")
    told = {wish: sum(one.was_told(wish) for one in known.values()) for wish in ("commit", "rollback")}
    return findings.judged(len(known), "transactions", committed=told["commit"], rolled_back=told["rollback"])


def unasked(run: RunData) -> Judgement:
    """Producers are asked about every acknowledged half that nobody ends: before the end they wait for that.

    When one is due to be asked about follows from group time, so that wrong clocks may put it off.
    """
    findings, left = Findings(), 0
    clocks = WrongClocks(run)
    for one in _transactions(run).values():
        if one.sent.outcome != "ok" or any(end.process != transactions.FINAL for end in one.ends):
            continue
        left += 1
        is_open = any(end.outcome == "ok" for end in one.ends)
        if is_open and not one.checks and not clocks.may_mislead(one.sent.invoke_ns, run.info.end_ns):
            findings.violation(f"{one.value} was open, and nobody was asked about it")
    return findings.judged(left, "halves that were left to the brokers")


def _transactions(run: RunData) -> dict[str, _Transaction]:
    known = {str(sent.value): _Transaction(sent) for sent in run.of(transactions.NAME, "send-half")}
    for end in run.of(transactions.NAME, "end-half"):
        known[end.key].ends.append(end)
    for check in run.of(transactions.NAME, "check"):
        if check.key in known:
            known[check.key].checks.append(check)
    return known


def _disk_was_full(run: RunData) -> bool:
    return any(event.kind == "fault-begin" and event.name.startswith("disk-full") for event in run.events)
