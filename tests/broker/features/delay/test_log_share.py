"""Share of a job in the log's bytes: everything while nobody else waits for the log, else no more than its part."""

from __future__ import annotations

from typing import cast

import pytest

from dledger.format import HEADER_BYTES
from dledger.log import Log
from dledger_broker.features.delay.share import GLANCE_S, LogShare
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.testing import FakeEnvironment


class Shared:
    """A log that a job and others write, and the job's share of it."""

    def __init__(self) -> None:
        self.env = FakeEnvironment()
        self.end_position = 10_000
        self.applied_position = 10_000
        self.share = LogShare(cast(BrokerMachine, self), cast(Log, self), self.env)
        self.share.begin()

    def unit(self, size: int, part: int = 4) -> None:
        """The job has a unit staged and sealed."""
        assert self.share.is_open
        self.share.take(size, part)
        self.end_position += size + HEADER_BYTES

    def settle(self, size: int) -> None:
        """Everything is applied, the job's unit too."""
        self.applied_position = self.end_position
        self.share.settled(size)


def test_a_job_that_is_alone_has_the_whole_log() -> None:
    shared = Shared()
    for _ in range(3):
        shared.unit(1000)
        shared.settle(1000)


@pytest.mark.parametrize("part", [2, 4])
def test_while_others_wait_they_get_their_part_before_the_next_unit(part: int) -> None:
    shared = Shared()
    shared.unit(1000, part)
    shared.end_position += 10
    shared.settle(1000)
    for _ in range(part - 1):
        assert not shared.share.is_open
        shared.env.advance(GLANCE_S * 2)
        shared.end_position += 1000
    assert shared.share.is_open


def test_a_job_goes_on_once_nobody_waits_any_more() -> None:
    shared = Shared()
    shared.unit(1000)
    shared.end_position += 10
    shared.settle(1000)
    assert not shared.share.is_open, "a glance right behind a unit says nothing"
    shared.env.advance(GLANCE_S)
    assert shared.share.is_open


def test_what_the_job_has_on_its_way_does_not_wait_for_itself() -> None:
    shared = Shared()
    shared.unit(1000)
    shared.end_position += 10
    shared.applied_position += 10
    shared.env.advance(GLANCE_S)
    shared.unit(1000)
    shared.end_position += 10
    shared.env.advance(GLANCE_S)
    assert not shared.share.is_open


def test_a_leader_that_begins_owes_nothing() -> None:
    shared = Shared()
    shared.unit(1000)
    shared.end_position += 10
    assert not shared.share.is_open
    shared.share.begin()
    assert shared.share.is_open
