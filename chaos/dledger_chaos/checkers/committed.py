"""Check of the offsets that consumer groups have committed."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from dledger_chaos.history import Operation

from .base import Findings, Judgement, RunData

SAMPLES_NS: Final = 2_000_000_000
"""Maximum time in ns between two samples of a running node."""


def offset_back(run: RunData) -> Judgement:
    """Check that no read returns less than an acknowledged commit or an earlier read.

    Clients only raise their offsets. No read may return an offset that no client had begun to commit. Reads through all
    nodes are judged alike.

    Of two concurrent commits, the lower one may win if the leader received it directly. A forwarded commit must not
    undo a higher commit. It may raise the offset that such a lower commit has left.
    """
    findings, checked = Findings(), 0
    leaders = _Leaders(run)
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
            if known is not None and (read.value is None or _decode_offset(read) < _decode_offset(known)):
                if any(
                    leaders.may_have_led(commit, _end_ns(read)) for commit in offset.concurrent_commits(known, read)
                ):
                    continue
                read_value = "none" if read.value is None else read.value
                findings.violation(
                    f"{key}: {read_value} read by {read.process}, after {known.f} {known.value} by {known.process} "
                    f"(operations {known.id}, {read.id})"
                )
            elif read.value is not None and not offset.may_hold(read):
                findings.violation(f"{key}: {read.value} was never committed (operation {read.id})")
    return findings.judged(checked, "reads of committed offsets")


class _Offset:
    """Operations on one offset."""

    def __init__(self) -> None:
        self.reads: list[Operation] = []
        self._commits: list[Operation] = []
        self._first_attempt_ns: dict[int, int] = {}
        self._proofs: list[Operation] = []
        self._proof_times_ns: list[int] = []
        self._highest_proofs: list[Operation] = []

    def add(self, operation: Operation) -> None:
        """Note a commit or a read."""
        if operation.f == "committed":
            self.reads.append(operation)
        else:
            self._commits.append(operation)
            value = _decode_offset(operation)
            self._first_attempt_ns[value] = min(
                operation.invoke_ns, self._first_attempt_ns.get(value, operation.invoke_ns)
            )
        if operation.outcome == "ok" and operation.value is not None:
            self._proofs.append(operation)

    def known_before(self, read: Operation) -> Operation | None:
        """Return the acknowledged commit or read with the highest offset among those that ended before a read began."""
        if not self._proof_times_ns:
            for proof in sorted(self._proofs, key=_end_ns):
                self._proof_times_ns.append(_end_ns(proof))
                self._highest_proofs.append(max([*self._highest_proofs[-1:], proof], key=_decode_offset))
        count = bisect_left(self._proof_times_ns, read.invoke_ns)
        return self._highest_proofs[count - 1] if count else None

    def may_hold(self, read: Operation) -> bool:
        """Return True if a client had begun to commit the read offset."""
        begun_ns = self._first_attempt_ns.get(_decode_offset(read))
        return begun_ns is not None and begun_ns < _end_ns(read)

    def concurrent_commits(self, known: Operation, read: Operation) -> list[Operation]:
        """Return commits of the read offset that overlap with the commit of the known offset or a higher one.

        If there are any, add concurrent commits of lower offsets: one of these commits may have raised their offset.
        """
        if read.value is None:
            return []
        begun = (one.invoke_ns for one in self._commits if _decode_offset(one) >= _decode_offset(known))
        floor = min(begun, default=known.invoke_ns)
        concurrent = [
            one
            for one in self._commits
            if _decode_offset(one) == _decode_offset(read) and (one.outcome != "ok" or _end_ns(one) > floor)
        ]
        lower = [one for one in self._commits if _decode_offset(one) < _decode_offset(read)]
        return (
            [*concurrent, *(one for one in lower if one.complete_ns is None or one.complete_ns > floor)]
            if concurrent
            else []
        )


class _Leaders:
    """Leaders over time, as the samples of the nodes show them."""

    def __init__(self, run: RunData) -> None:
        self._samples = [
            (event.time_ns, event.node)
            for event in run.events
            if event.kind == "status" and event.fields.get("role") == "leader"
        ]

    def may_have_led(self, commit: Operation, until_ns: int) -> bool:
        """Return True if the receiver of a commit may have led when the commit arrived."""
        if commit.outcome == "ok":
            until_ns = _end_ns(commit)
        node = commit.extras.get("node")
        return any(
            node == leader and commit.invoke_ns - SAMPLES_NS <= time_ns <= until_ns + SAMPLES_NS
            for time_ns, leader in self._samples
        )


def _decode_offset(operation: Operation) -> int:
    return msgspec.convert(operation.value, int)


def _end_ns(operation: Operation) -> int:
    assert operation.complete_ns is not None
    return operation.complete_ns
