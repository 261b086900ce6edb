"""Share of a job in the log's bytes: everything while nobody else waits for the log, otherwise only its part."""

from __future__ import annotations

from typing import cast

import pytest

from dledger.format import HEADER_BYTES
from dledger.log import Log
from dledger_broker.features.delay.share import MIN_GAP_S, LogShare
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.testing import FakeEnvironment


class Shared:
    """Log that a job and others write, and the job's share of it."""

    def __init__(self) -> None:
        self.env = FakeEnvironment()
        self.end_position = 10_000
        self.applied_position = 10_000
        self.last_index = self.applied_index = 7
        self.share = LogShare(cast(BrokerMachine, self), cast(Log, self), self.env)
        self.share.begin()

    def unit(self, size: int, part: int = 4) -> None:
        """Stage and seal a unit of the job."""
        assert self.share.is_open
        self.share.take(size, part)
        self.end_position += size + HEADER_BYTES
        self.last_index += 1

    def others(self, size: int) -> None:
        """Stage an entry of somebody else."""
        self.end_position += size
        self.last_index += 1

    def status(self) -> Shared:
        """Return this log as its own status."""
        return self

    def settle(self, size: int) -> None:
        """Apply everything, including the job's unit."""
        self.applied_position, self.applied_index = self.end_position, self.last_index
        self.share.settled(size)


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_a_job_that_is_alone_has_the_whole_log(shared: Shared) -> None:
    for _ in range(3):
        shared.unit(1000)
        shared.settle(1000)


@pytest.mark.parametrize("part", [2, 4])
def test_waiting_entries_get_their_share_of_the_log_before_the_next_unit_of_a_job(shared: Shared, part: int) -> None:
    shared.unit(1000, part)
    shared.others(10)
    shared.settle(1000)
    for _ in range(part - 1):
        assert not shared.share.is_open
        shared.env.advance(MIN_GAP_S * 2)
        shared.others(1000)
    assert shared.share.is_open


def test_a_job_continues_once_no_other_entry_waits(shared: Shared) -> None:
    shared.unit(1000)
    shared.others(10)
    shared.settle(1000)
    assert not shared.share.is_open, "a glance right behind a unit says nothing"
    shared.env.advance(MIN_GAP_S)
    assert shared.share.is_open


def test_a_unit_of_the_job_in_flight_does_not_count_as_a_waiting_entry(shared: Shared) -> None:
    shared.unit(1000)
    shared.others(10)
    shared.applied_position += 10
    shared.env.advance(MIN_GAP_S)
    shared.unit(1000)
    shared.others(10)
    shared.env.advance(MIN_GAP_S)
    assert not shared.share.is_open


def test_a_new_leader_owes_no_share_of_the_log_to_other_entries(shared: Shared) -> None:
    shared.unit(1000)
    shared.others(10)
    assert not shared.share.is_open
    shared.share.begin()
    assert shared.share.is_open


def test_an_entry_of_the_log_itself_does_not_count_as_a_waiting_entry(shared: Shared) -> None:
    """A change of members at the log's end is nobody who waits, and moves no applied position."""
    shared.unit(1000)
    shared.end_position += 300
    shared.settle(1000)
    shared.applied_position -= 300
    assert not shared.share.is_open, "whoever sends may have just been answered"
    shared.env.advance(MIN_GAP_S * 2)
    assert shared.share.is_open
