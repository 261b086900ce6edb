"""Check of the offsets that consumer groups have committed."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from dledger_chaos.history import Operation

from .base import Findings, Judgement, RunData

SAMPLES_NS: Final = 2_000_000_000
"""Samples of a node that runs are closer together than that."""


def offset_back(run: RunData) -> Judgement:
    """A committed offset that only rises is never read lower than what was acknowledged, or read, before.

    Nor is anything read that nobody had committed. Whoever reads, and through whichever node, is judged alike. Of two
    commits under way at the same time the lower one may come last if it reached the leader itself: only one that was
    passed on must not undo the higher one. It may raise what such a lower one has left.
    """
    findings, checked = Findings(), 0
    leads = _Leads(run)
    offsets: dict[str, _Offset] = {}
    for operation in run.of("offsets", "commit", "committed"):
        offsets.setdefault(operation.key, _Offset()).add(operation)
    for key, offset in offsets.items():
        for read in offset.reads:
            if read.outcome != "ok":
                if read.process.startswith("final"):
                    findings.doubt(f"the offset of {key} could not be read at the end")
                continue
            checked += 1
            known = offset.known_before(read)
            if known is not None and (read.value is None or _offset(read) < _offset(known)):
                if any(leads.at(late, _ended_ns(read)) for late in offset.beside(known, read)):
                    continue
                there = "none" if read.value is None else read.value
                findings.violation(
                    f"{key}: {there} read by {read.process}, after {known.f} {known.value} by {known.process} "
                    f"(operations {known.id}, {read.id})"
                )
            elif read.value is not None and not offset.may_hold(read):
                findings.violation(f"{key}: {read.value} was never committed (operation {read.id})")
    return findings.judged(checked, "reads of committed offsets")


class _Offset:
    """What was done to one offset."""

    def __init__(self) -> None:
        self.reads: list[Operation] = []
        self._commits: list[Operation] = []
        self._attempted_ns: dict[int, int] = {}
        self._proofs: list[Operation] = []
        self._proof_ns: list[int] = []
        self._highest: list[Operation] = []

    def add(self, operation: Operation) -> None:
        """Note a commit or a read."""
        if operation.f == "committed":
            self.reads.append(operation)
        else:
            self._commits.append(operation)
            value = _offset(operation)
            self._attempted_ns[value] = min(operation.invoke_ns, self._attempted_ns.get(value, operation.invoke_ns))
        if operation.outcome == "ok" and operation.value is not None:
            self._proofs.append(operation)

    def known_before(self, read: Operation) -> Operation | None:
        """The highest of the commits acknowledged, and of the offsets read, before a read began."""
        if not self._proof_ns:
            for proof in sorted(self._proofs, key=_ended_ns):
                self._proof_ns.append(_ended_ns(proof))
                self._highest.append(max([*self._highest[-1:], proof], key=_offset))
        count = bisect_left(self._proof_ns, read.invoke_ns)
        return self._highest[count - 1] if count else None

    def may_hold(self, read: Operation) -> bool:
        """Whether somebody had begun to commit what was read."""
        begun_ns = self._attempted_ns.get(_offset(read))
        return begun_ns is not None and begun_ns < _ended_ns(read)

    def beside(self, known: Operation, read: Operation) -> list[Operation]:
        """The commits of what was read that were under way when what is known, or something as high, was committed.

        With them those of less, which one of them may have raised again.
        """
        if read.value is None:
            return []
        begun = (one.invoke_ns for one in self._commits if _offset(one) >= _offset(known))
        floor = min(begun, default=known.invoke_ns)
        found = [
            one
            for one in self._commits
            if _offset(one) == _offset(read) and (one.outcome != "ok" or _ended_ns(one) > floor)
        ]
        lower = [one for one in self._commits if _offset(one) < _offset(read)]
        return [*found, *(one for one in lower if one.complete_ns is None or one.complete_ns > floor)] if found else []


class _Leads:
    """Which node led when, as far as samples tell."""

    def __init__(self, run: RunData) -> None:
        self._samples = [
            (event.time_ns, event.node)
            for event in run.events
            if event.kind == "status" and event.fields.get("role") == "leader"
        ]

    def at(self, commit: Operation, until_ns: int) -> bool:
        """Whether the node that a commit was sent to may have led when it came there."""
        if commit.outcome == "ok":
            until_ns = _ended_ns(commit)
        node = commit.extras.get("node")
        return any(
            node == leader and commit.invoke_ns - SAMPLES_NS <= time_ns <= until_ns + SAMPLES_NS
            for time_ns, leader in self._samples
        )


def _offset(operation: Operation) -> int:
    return msgspec.convert(operation.value, int)


def _ended_ns(operation: Operation) -> int:
    assert operation.complete_ns is not None
    return operation.complete_ns
