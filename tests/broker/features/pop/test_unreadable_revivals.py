"""Popped messages that are due and cannot be delivered again yet, for their bytes have rotted or no unit holds them.

They are counted and set aside: nothing that is behind them waits, and they come once that is mended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger.errors import CorruptionError
from dledger_broker.features.pop import reading
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pop.revival import MAX_DELIVERIES, REPAIR_MS
from tests.broker.features.pop.pop_calls import (
    HIDDEN_S,
    POP,
    pop,
    pop_ext,
    retry_of,
    table_of,
    wait,
    with_group,
    with_revivals,
)

AGAIN_S = REPAIR_MS / 1000
BODY = b"the bytes that rot"
ENDLESS = 1_000
"""So often no record of these tests is looked at."""


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Its retry topics are there: a look that has to create one sees the same messages once more."""
    broker = with_revivals(with_group(make_broker(topics=("T1", "T2"))))
    for topic in ("T1", "T2"):
        broker.memory.create_topic(retry_of(topic), 1)
    return broker


def unreadable(broker: ServedBroker) -> float:
    """What the node shows as `pop_messages_unreadable`."""
    gauges = broker.service.parts[PopRequests].gauges
    (found,) = (gauge.read() for gauge in gauges if gauge.name == "pop_messages_unreadable")
    return found


def put(broker: ServedBroker, data: bytes, by: bytes) -> None:
    """Have other bytes stand in the log, wherever these do."""
    log = broker.memory.log.data
    assert data in log
    log[:] = log.replace(data, by)


def rot(broker: ServedBroker, body: bytes = BODY) -> None:
    put(broker, body, body.swapcase())


def heal(broker: ServedBroker, body: bytes = BODY) -> None:
    put(broker, body.swapcase(), body)


def pop_three(client: FakeClient) -> None:
    """One delivery of three messages, of which the one in the middle is to rot."""
    for body in (b"before", BODY, b"behind"):
        client.send_message("T1", body)
    assert len(pop(client)) == 3


def again(client: FakeClient, topic: str = "T1") -> list[bytes]:
    return [message.body for message in pop(client, topic)]


def test_a_rotten_message_is_counted_and_those_of_its_delivery_come_again_without_it(
    broker: ServedBroker, client: FakeClient
) -> None:
    pop_three(client)
    rot(broker)
    wait(broker, HIDDEN_S + 2)
    assert again(client) == [b"before", b"behind"]
    assert unreadable(broker) == 1
    assert table_of(broker).open_count == 3


def test_a_rotten_message_is_set_aside_and_looked_at_again_until_the_log_has_healed_it(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send_message("T1", BODY)
    assert again(client) == [BODY]
    rot(broker)
    wait(broker, HIDDEN_S + AGAIN_S - 1)
    assert unreadable(broker) == 1
    wait(broker, 2)
    assert unreadable(broker) == 2
    heal(broker)
    wait(broker, AGAIN_S - 4)
    assert (again(client), table_of(broker).open_count) == ([], 1)
    wait(broker, 4)
    assert again(client) == [BODY]
    assert unreadable(broker) == 2
    assert broker.memory.queue(retry_of()).max_offset == 1


def test_more_rotten_messages_than_one_look_takes_block_nothing_that_is_due_behind_them(
    broker: ServedBroker, client: FakeClient
) -> None:
    for number in range(MAX_DELIVERIES + 10):
        client.send_message("T1", BODY + b"%d" % number)
        assert len(pop(client, maxMsgNums="1")) == 1
    wait(broker, 1)
    client.send_message("T2", b"later")
    assert again(client, "T2") == [b"later"]
    rot(broker)
    wait(broker, HIDDEN_S + 2)
    assert (again(client), again(client, "T2")) == ([], [b"later"])
    assert unreadable(broker) == MAX_DELIVERIES + 10


def test_a_rotten_message_that_is_read_from_the_disk_blocks_nothing_either(
    broker: ServedBroker, client: FakeClient
) -> None:
    pop_three(client)
    rot(broker)
    broker.memory.node.cold = True
    wait(broker, HIDDEN_S + 2)
    broker.memory.node.cold = False
    assert again(client) == [b"before", b"behind"]
    assert unreadable(broker) == 1


@contextmanager
def known_damage(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch, body: bytes = BODY) -> Iterator[None]:
    """The log refuses to read the record of a body, as it does once its scrub has found the damage."""
    node, read = broker.memory.node, broker.memory.node._read

    def refuse(position: int, size: int) -> bytes:
        data = read(position, size)
        if body in data:
            raise CorruptionError(f"the range at {position} is known not to verify")
        return data

    with monkeypatch.context() as patch:
        patch.setattr(node, "_read", refuse)
        yield


@pytest.mark.parametrize("cold", [True, False])
def test_what_the_log_knows_to_be_damaged_is_counted_and_blocks_nothing(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch, *, cold: bool
) -> None:
    pop_three(client)
    client.send_message("T2", b"later")
    assert again(client, "T2") == [b"later"]
    wait(broker, 1)
    assert len(broker.memory.bodies("T1")) == 3, "the files are open, so that reads need no worker"
    with known_damage(broker, monkeypatch):
        broker.memory.node.cold = cold
        wait(broker, HIDDEN_S + 2)
        broker.memory.node.cold = False
        assert (again(client), again(client, "T2")) == ([b"before", b"behind"], [b"later"])
    assert unreadable(broker) == 1
    assert broker.memory.machine.jobs.failures["revivals"] == 0


class CountedReads:
    """Sizes of records, which are read a limited number of times."""

    def __init__(self) -> None:
        self._size = Struct(">i")
        self._reads = 0

    def unpack_from(self, data: bytes, at: int) -> tuple[int, ...]:
        self._reads += 1
        assert self._reads < ENDLESS, "records are split for ever"
        return self._size.unpack_from(data, at)


@pytest.mark.parametrize("size", [0, 1, -1, -40, 1 << 30])
def test_a_record_whose_size_has_rotted_is_counted_and_blocks_nothing(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    pop_three(client)
    client.send_message("T2", b"later")
    assert again(client, "T2") == [b"later"]
    monkeypatch.setattr(reading, "_SIZE", CountedReads())
    queue = broker.memory.queue("T1")
    ((position, _),) = broker.memory.reads.get_messages(queue, 1, 1, 1 << 20).runs
    broker.memory.log.data[position : position + 4] = size.to_bytes(4, "big", signed=True)
    wait(broker, HIDDEN_S + 2)
    assert (again(client), again(client, "T2")) == ([b"before", b"behind"], [b"later"])
    assert unreadable(broker) == 1
    assert broker.memory.machine.jobs.failures["revivals"] == 0


def test_a_copy_that_no_unit_holds_is_counted_and_set_aside_until_one_does(
    broker: ServedBroker, client: FakeClient
) -> None:
    large = b"L" * 100_000
    client.send_message("T1", large)
    client.send_message("T1", b"behind")
    assert again(client) == [large, b"behind"]
    client.send_message("T2", b"later")
    assert again(client, "T2") == [b"later"]
    log = broker.memory.log
    log.roll(0)
    log.segment_bytes = 64 << 10
    wait(broker, HIDDEN_S + 2)
    assert (again(client), again(client, "T2")) == ([], [b"later"])
    assert (unreadable(broker), table_of(broker).open_count) == (1, 3)
    wait(broker, AGAIN_S - 4)
    assert unreadable(broker) == 1
    log.segment_bytes = 1 << 20
    wait(broker, 4)
    assert again(client) == [large, b"behind"]
    assert unreadable(broker) == 1
    assert table_of(broker).open_count == 3


def test_a_pop_that_meets_a_record_whose_size_has_rotted_is_told_and_ends_nothing(
    broker: ServedBroker, client: FakeClient
) -> None:
    for body in (b"before", BODY, b"behind"):
        client.send_message("T1", body)
    ((position, size),) = broker.memory.reads.get_messages(broker.memory.queue("T1"), 1, 1, 1 << 20).runs
    broker.memory.log.data[position : position + 4] = bytes(4)
    refused = client.call(POP, pop_ext())
    assert (refused.code, "it has rotted" in (refused.remark or "")) == (1, True)
    broker.memory.log.data[position : position + 4] = size.to_bytes(4, "big")
    assert again(client) == [b"before", BODY, b"behind"]
