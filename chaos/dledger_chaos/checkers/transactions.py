"""Checks of transactions: the end of each half agrees with its producers' requests and the answers to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_chaos.history import Operation
from dledger_chaos.workloads import transactions
from dledger_remoting.codes import ResponseCode

from .base import Findings, Judgement, RunData
from .recovery import struck_faults
from .shown import Shown
from .wrong_clocks import WrongClocks


@dataclass(slots=True)
class _Transaction:
    """A half, the requests to end it, and the producers' answers to the brokers' checks."""

    sent: Operation
    ends: list[Operation] = field(default_factory=list)
    checks: list[Operation] = field(default_factory=list)

    @property
    def value(self) -> str:
        return str(self.sent.value)

    def asked_ns(self, wish: str) -> int | None:
        """Return the time at which a producer first requested a commit, or a rollback; None if none did."""
        return min((one.invoke_ns for one in (*self.ends, *self.checks) if one.value == wish), default=None)

    def was_told(self, wish: str) -> bool:
        """Return True if an answer told a producer that the transaction is committed, or rolled back."""
        return any(end.value == wish and end.outcome == "ok" for end in self.ends)

    def was_shown_too_early(self, shown_ns: int | None) -> bool:
        """Return True if the transaction was shown before any producer asked for its commit."""
        asked_ns = self.asked_ns("commit")
        return shown_ns is not None and (asked_ns is None or shown_ns < asked_ns)

    def why_gone(self) -> str:
        """Return the error of the final request to end an acknowledged half, empty if it was not refused.

        If producers also requested the opposite end, the refusal is no error.
        """
        for end in self.ends:
            is_refused = end.outcome == "fail" and end.code == ResponseCode.SYSTEM_ERROR
            if end.process == transactions.FINAL and is_refused and self.sent.outcome == "ok":
                other = "rollback" if end.value == "commit" else "commit"
                return end.error if self.asked_ns(other) is None else ""
        return ""


def half(run: RunData) -> Judgement:
    """Check that a transaction is shown only after a request for its commit, and never after its rollback.

    A transaction with an acknowledged commit is there once. An acknowledged half can be ended, unless a full disk has
    removed it.
    """
    findings = Findings()
    shown = Shown.to_readers_of(run, transactions.NAME)
    transactions_by_value, may_be_lost = _collect_transactions(run), _had_full_disk(run)
    for transaction in transactions_by_value.values():
        places = sorted(shown.places.get(transaction.value, ()))
        if transaction.was_shown_too_early(shown.first_ns.get(transaction.value)):
            findings.violation(f"{transaction.value} was there before anybody asked for its commit")
        if len(places) > 1:
            findings.violation(f"{transaction.value} lies at {', '.join(f'{key}@{offset}' for key, offset in places)}")
        if transaction.was_told("rollback") and (places or transaction.was_told("commit")):
            findings.violation(f"{transaction.value} was said to be rolled back, and is committed")
        if transaction.was_told("commit") and not places and shown.are_whole(run, transaction.sent.key):
            findings.violation(f"{transaction.value} was said to be committed, and is nowhere")
        if (refusal := transaction.why_gone()) and not may_be_lost:
            findings.violation(f"{transaction.value} was acknowledged, and cannot be ended: {refusal}")
    for look in run.of(transactions.NAME, "find-half", outcome="ok"):
        if look.value and transactions_by_value[look.key].was_shown_too_early(look.complete_ns):
            findings.violation(f"{look.key} was found by its key before anybody asked for its commit")
    confirmed = {
        wish: sum(transaction.was_told(wish) for transaction in transactions_by_value.values())
        for wish in ("commit", "rollback")
    }
    return findings.judged(
        len(transactions_by_value), "transactions", committed=confirmed["commit"], rolled_back=confirmed["rollback"]
    )


def unasked(run: RunData) -> Judgement:
    """Check that brokers ask producers about every acknowledged half that no producer ends.

    Group time decides when the question about a half is due, so wrong clocks may delay the question.
    """
    findings, left_count = Findings(), 0
    clocks = WrongClocks(run)
    for transaction in _collect_transactions(run).values():
        if transaction.sent.outcome != "ok" or any(end.process != transactions.FINAL for end in transaction.ends):
            continue
        left_count += 1
        is_open = any(end.outcome == "ok" for end in transaction.ends)
        if is_open and not transaction.checks and not clocks.may_mislead(transaction.sent.invoke_ns, run.info.end_ns):
            findings.violation(f"{transaction.value} was open, and no producer was asked about it")
    return findings.judged(left_count, "halves that were left to the brokers")


def _collect_transactions(run: RunData) -> dict[str, _Transaction]:
    found = {str(sent.value): _Transaction(sent) for sent in run.of(transactions.NAME, "send-half")}
    for end in run.of(transactions.NAME, "end-half"):
        found[end.key].ends.append(end)
    for check in run.of(transactions.NAME, "check"):
        if check.key in found:
            found[check.key].checks.append(check)
    return found


def _had_full_disk(run: RunData) -> bool:
    return any(kind.startswith(("disk-full", "disk-filled")) for _, kind, _ in struck_faults(run.events))
