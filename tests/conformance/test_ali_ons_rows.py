"""The unmodified npm client `ali-ons` 3.12.0 comes through rows on retries, dead letters and delay.

Two broker groups, as it never tries a send again within one. It has neither ordered consumers nor transactions; for
order it does no more than to send what has one sharding key to queues of one number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

import pytest
import rows
from cluster_checks import bodies_of, create_topic, stored_messages
from rows import Row
from wiretap import Wiretap

pytestmark = pytest.mark.slow
WITH_AND_WITHOUT_A_KILL = pytest.mark.parametrize(
    "row", [False, True], ids=["undisturbed", "leader killed"], indirect=True
)
WAYS: Final[Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "DELAY": lambda: {"level": 2},
    "__STARTDELIVERTIME": lambda: {"deliver_ms": time.time_ns() // 1_000_000 + 2000},
}
SHARD_OF_ANOTHER_QUEUE: Final = 2
_NUMBERS = count()


@pytest.fixture
def row(quick_groups, ali_ons, request) -> Iterator[Row]:
    with Wiretap(quick_groups) as tap:
        yield Row(quick_groups, tap, ali_ons, f"AliRow{next(_NUMBERS)}", kills=request.param)


@WITH_AND_WITHOUT_A_KILL
def test_failed_messages_come_again(row):
    rows.failed_messages_come_again(row)


@WITH_AND_WITHOUT_A_KILL
def test_hopeless_messages_become_dead_letters(row):
    rows.hopeless_messages_become_dead_letters(row)


@WITH_AND_WITHOUT_A_KILL
def test_delayed_messages_come_when_they_are_due(row):
    rows.delayed_messages_come_when_they_are_due(row, WAYS)


def test_messages_of_one_shard_lie_in_one_queue_in_order(quick_group, ali_ons):
    """In one broker group: of several it takes one after the other, and of queue 0 it thinks that none is chosen."""
    create_topic(quick_group, "AliSharded")
    client = ali_ons(quick_group.namesrv)
    for number in range(10):
        client.call("send", topic="AliSharded", body=str(number), shard=SHARD_OF_ANOTHER_QUEUE)
    messages = stored_messages(quick_group, "AliSharded")
    assert bodies_of(messages) == [str(number) for number in range(10)]
    assert len({message.queue for message in messages}) == 1
