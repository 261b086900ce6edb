"""Readers of the log itself: they plan, read ranges from any node, and pin the log that they still need.

They check:

- An answer to a range read has whole entries, with every record of that range and no other.
- A plan and a commit position are never behind messages that were acknowledged before the request.
- The log is kept from a pin on, from its acknowledgement until its lease may be over. A trimmed position is not pinned.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dledger.errors import CorruptionError
from dledger.format import HEADER_BYTES, parse_run
from dledger.types import EntryKind
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.range_reads import PinList, ReadPlan
from dledger_remoting.record import scan_records
from dledger_sim.brokers.clients import LATE_EFFECT_S, Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import Claim
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.invariants import require

ANY_ROLE: Final = "leader,follower,learner"
SLICE_BYTES: Final = 64 << 10
LEASE_S: Final = 20.0


class BulkReader(Client):
    """Client that reads the log as Spark does, and starts again with a new plan."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._pin_name = f"reader-{number}"
        self._ranges: list[tuple[int, int]] = []
        self._unpinned_at: float | None = None
        """Time of the last unpin request. For a while it may still take effect, also on a newer pin."""

    def act(self) -> None:
        """Plan, read on, change the pin, or ask for the commit position."""
        choice = self.random.random()
        if choice < 0.1:
            self._commit()
        elif choice < 0.25:
            self._change_pin()
        elif self._ranges and choice < 0.9:
            self._read_range(*self._ranges[0])
        else:
            self._request_plan()

    # ---------------------------------------------------------------- reading

    def _request_plan(self) -> None:
        floor = self.workload.stored_below

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                plan = msgspec.json.decode(answer.body, type=ReadPlan)
                require(
                    plan.commit >= floor,
                    "a read plan covers all messages that were acknowledged before it",
                    commit=plan.commit,
                    asked_for=floor,
                )
                ends = [*(cut.position for cut in plan.cuts[1:]), plan.commit]
                self._ranges = [(cut.position, end) for cut, end in zip(plan.cuts, ends, strict=False)]
                self.workload.counts["log planned"] += 1
            self.pause()

        ext = {"roles": ANY_ROLE, "sliceBytes": str(SLICE_BYTES), "minCommit": str(floor)}
        if not self.call(RequestCode.READ_PLAN, ext, done):
            self.pause()

    def _read_range(self, start: int, end: int) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                after = int(answer.ext["end"])
                require(start < after <= end, "a range read makes progress", asked=(start, end), next=after)
                self._check_range(start, after, answer.body)
                self._ranges[0] = (after, end)
                if after == end:
                    self._ranges.pop(0)
            elif answer is not None and answer.code == ResponseCode.READ_TRIMMED:
                require(
                    start < self.workload.truth.trimmed_to,
                    "a read of a kept range is not denied",
                    asked=start,
                    answer=answer,
                )
                self._ranges.clear()
                self.workload.counts["range trimmed"] += 1
            elif answer is not None and self.workload.group.rotten:
                self._ranges.clear()
            self.pause()

        ext = {
            "roles": ANY_ROLE,
            "start": str(start),
            "end": str(end),
            "maxBytes": str(self.random.randint(1, 32 << 10)),
        }
        if self.random.random() < 0.5:
            ext["pin"] = self._pin_name
        if not self.call(RequestCode.READ_RANGE, ext, done):
            self.pause()

    def _check_range(self, start: int, end: int, body: bytes) -> None:
        """Check that the bytes are entries with exactly the records at that place."""
        try:
            entries = parse_run(body, None)
            found: list[int] = []
            for entry in entries:
                if entry.kind == EntryKind.GROUP:
                    begin = entry.position - start + HEADER_BYTES
                    records = body[begin : begin + entry.size - HEADER_BYTES - entry.channel]
                    found += [entry.position + HEADER_BYTES + record.position for record in scan_records(records)]
        except CorruptionError:
            require(self.workload.group.rotten, "a range holds whole entries", start=start, end=end)
            return
        expected = self.workload.truth.positions_between(start, end)
        require(
            found == expected or self.workload.group.rotten,
            "a range read returns everything in the range",
            start=start,
            end=end,
        )
        self.workload.counts["record read by range"] += len(found)

    def _commit(self) -> None:
        floor = self.workload.stored_below

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                reported = int(answer.ext["commit"])
                require(
                    reported >= floor,
                    "the commit position covers all acknowledged messages",
                    told=reported,
                    acknowledged=floor,
                )
            self.pause()

        if not self.call(RequestCode.READ_COMMIT, {}, done):
            self.pause()

    # ---------------------------------------------------------------- pins

    def _change_pin(self) -> None:
        claims = self.workload.truth.claims
        if self._pin_name in claims and self.random.random() < 0.5:
            self._list_pins()
        elif self._pin_name in claims and self.random.random() < 0.3:
            self._unpin()
        elif self._ranges:
            self._put_pin(self._ranges[0][0])
        else:
            self.pause()

    @property
    def _may_be_unpinned(self) -> bool:
        """True if an earlier unpin may still take effect."""
        group, at = self.workload.group, self._unpinned_at
        return at is not None and group.scheduler.now <= at + LATE_EFFECT_S + group.longest_pause_s

    def _put_pin(self, position: int) -> None:
        workload, now = self.workload, self.workload.group.scheduler.now
        counts = not self._may_be_unpinned
        trimmed_to = workload.truth.trimmed_to

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                require(position >= trimmed_to, "trimmed log is not pinned", asked=position, trimmed_to=trimmed_to)
            if answer is not None and answer.code == ResponseCode.SUCCESS and counts:
                held = int(answer.ext["position"])
                require(held <= position, "a pin keeps at least the log that was asked for", asked=position, held=held)
                workload.truth.claims[self._pin_name] = Claim(held, now + LEASE_S)
                workload.counts["log pinned"] += 1
            self.pause()

        ext = {"name": self._pin_name, "position": str(position), "leaseMillis": str(int(LEASE_S * 1000))}
        if not self.call(RequestCode.PIN_LOG, ext, done):
            self.pause()

    def _unpin(self) -> None:
        del self.workload.truth.claims[self._pin_name]
        self._unpinned_at = self.workload.group.scheduler.now
        if not self.call(RequestCode.UNPIN_LOG, {"name": self._pin_name}, lambda _: self.pause()):
            self.pause()

    def _list_pins(self) -> None:
        claim = self.workload.truth.claims[self._pin_name]

        def done(answer: Answer | None) -> None:
            group = self.workload.group
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                pins = {pin.name: pin.position for pin in msgspec.json.decode(answer.body, type=PinList).pins}
                held = pins.get(self._pin_name)
                lasts = group.scheduler.now < claim.until and not group.clocks_jumped
                require(
                    not lasts or (held is not None and held <= claim.position),
                    "a pin is listed until its lease is over",
                    pin=self._pin_name,
                    claimed=claim,
                    held=held,
                )
            self.pause()

        if not self.call(RequestCode.LIST_PINS, {}, done):
            self.pause()
