"""Popped messages that are due, and rotten or too large: they are set aside until they can be delivered again."""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

import pytest
from served_broker import ServedBroker

from dledger.errors import CorruptionError
from dledger_broker.features.pop import reading
from dledger_broker.features.pop.revival import MAX_DELIVERIES, REPAIR_MS
from tests.broker.features.pop.pop_calls import HIDDEN_S, Popper, retry_of

AGAIN_S = REPAIR_MS / 1000
BODY = b"the bytes that rot"
ENDLESS = 1_000
"""Number of looks at records that no test here reaches."""


@pytest.fixture(autouse=True)
def retry_topics(broker: ServedBroker) -> None:
    """Make the retry topics: a look that has to create one would see the same messages once more."""
    for topic in ("T1", "T2"):
        broker.memory.create_topic(retry_of(topic), 1)


def unreadable(client: Popper) -> float:
    return client.broker.gauge("pop_messages_unreadable")


def rot(client: Popper, body: bytes = BODY) -> None:
    """Change the bytes of a body in the log, wherever they stand. The second call heals the first."""
    log = client.broker.memory.log.data
    assert (body in log) != (body.swapcase() in log)
    here, there = (body, body.swapcase()) if body in log else (body.swapcase(), body)
    log[:] = log.replace(here, there)


def pop_three(client: Popper) -> None:
    """Pop one delivery of three messages, of which the middle message is to rot."""
    client.store(b"before", BODY, b"behind")
    assert len(client.pop()) == 3


def pop_three_and_one_of_another_topic(client: Popper) -> None:
    pop_three(client)
    client.store(b"later", topic="T2")
    assert client.pop_bodies("T2") == [b"later"]


def position_of_the_second(client: Popper) -> tuple[int, int]:
    """Return position and size of the second message of T1."""
    memory = client.broker.memory
    (run,) = memory.reads.get_messages(memory.queue("T1"), 1, 1, 1 << 20).runs
    return run


@pytest.mark.parametrize("cold", [True, False])
def test_a_damaged_message_is_counted_and_the_rest_of_its_delivery_is_redelivered(
    client: Popper, *, cold: bool
) -> None:
    pop_three(client)
    rot(client)
    client.broker.memory.node.cold = cold
    client.wait(HIDDEN_S + 2)
    client.broker.memory.node.cold = False
    assert client.pop_bodies() == [b"before", b"behind"]
    assert unreadable(client) == 1
    assert client.table.open_count == 3


def test_a_damaged_message_is_set_aside_and_read_again_until_the_log_is_repaired(client: Popper) -> None:
    client.store(BODY)
    assert client.pop_bodies() == [BODY]
    rot(client)
    client.wait(HIDDEN_S + AGAIN_S - 1)
    assert unreadable(client) == 1
    client.wait(2)
    assert unreadable(client) == 2
    rot(client)
    client.wait(AGAIN_S - 4)
    assert (client.pop(), client.table.open_count) == ([], 1)
    client.wait(4)
    assert client.pop_bodies() == [BODY]
    assert unreadable(client) == 2
    assert client.broker.memory.queue(retry_of()).max_offset == 1


def test_many_damaged_messages_block_no_later_revivals(client: Popper) -> None:
    for number in range(MAX_DELIVERIES + 10):
        client.store(BODY + b"%d" % number)
        assert len(client.pop(maxMsgNums="1")) == 1
    client.wait(1)
    client.store(b"later", topic="T2")
    assert client.pop_bodies("T2") == [b"later"]
    rot(client)
    client.wait(HIDDEN_S + 2)
    assert (client.pop(), client.pop_bodies("T2")) == ([], [b"later"])
    assert unreadable(client) == MAX_DELIVERIES + 10


@contextmanager
def known_damage(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the log refuse to read the record of the body, as it does once its scrub has found the damage."""
    node, read = broker.memory.node, broker.memory.node._read

    def refuse(position: int, size: int) -> bytes:
        data = read(position, size)
        if BODY in data:
            raise CorruptionError(f"the range at {position} is known not to verify")
        return data

    with monkeypatch.context() as patch:
        patch.setattr(node, "_read", refuse)
        yield


def assert_only_the_damaged_message_is_missing(client: Popper) -> None:
    assert (client.pop_bodies(), client.pop_bodies("T2")) == ([b"before", b"behind"], [b"later"])
    assert unreadable(client) == 1
    assert client.broker.memory.machine.jobs.failures["revivals"] == 0


@pytest.mark.parametrize("cold", [True, False])
def test_a_record_known_to_be_damaged_is_counted_and_blocks_no_revival(
    client: Popper, monkeypatch: pytest.MonkeyPatch, *, cold: bool
) -> None:
    pop_three_and_one_of_another_topic(client)
    client.wait(1)
    assert len(client.broker.memory.bodies("T1")) == 3, "the files are open, so that reads need no worker"
    with known_damage(client.broker, monkeypatch):
        client.broker.memory.node.cold = cold
        client.wait(HIDDEN_S + 2)
        client.broker.memory.node.cold = False
        assert_only_the_damaged_message_is_missing(client)


class CountedReads:
    """Decoder of record sizes that may be used a limited number of times."""

    def __init__(self) -> None:
        self._size = Struct(">i")
        self._reads = 0

    def unpack_from(self, data: bytes, at: int) -> tuple[int, ...]:
        self._reads += 1
        assert self._reads < ENDLESS, "records are split for ever"
        return self._size.unpack_from(data, at)


@pytest.mark.parametrize("size", [0, 1, -1, -40, 1 << 30])
def test_a_record_whose_size_has_rotted_is_counted_and_blocks_nothing(
    client: Popper, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    pop_three_and_one_of_another_topic(client)
    monkeypatch.setattr(reading, "_SIZE", CountedReads())
    position, _ = position_of_the_second(client)
    client.broker.memory.log.data[position : position + 4] = size.to_bytes(4, "big", signed=True)
    client.wait(HIDDEN_S + 2)
    assert_only_the_damaged_message_is_missing(client)


def test_a_copy_too_large_for_any_unit_is_counted_and_set_aside_until_units_are_larger(client: Popper) -> None:
    bodies = [b"L" * 100_000, b"behind"]
    client.store(*bodies)
    assert client.pop_bodies() == bodies
    client.store(b"later", topic="T2")
    assert client.pop_bodies("T2") == [b"later"]
    log = client.broker.memory.log
    log.roll(0)
    log.segment_bytes = 64 << 10
    client.wait(HIDDEN_S + 2)
    assert (client.pop(), client.pop_bodies("T2")) == ([], [b"later"])
    assert (unreadable(client), client.table.open_count) == (1, 3)
    client.wait(AGAIN_S - 4)
    assert unreadable(client) == 1
    log.segment_bytes = 1 << 20
    client.wait(4)
    assert client.pop_bodies() == bodies
    assert unreadable(client) == 1
    assert client.table.open_count == 3


def test_a_pop_that_meets_a_rotten_record_size_is_refused_and_loses_nothing(client: Popper) -> None:
    client.store(b"before", BODY, b"behind")
    log = client.broker.memory.log.data
    position, size = position_of_the_second(client)
    log[position : position + 4] = bytes(4)
    refused = client.ask_pop()
    assert (refused.code, "it has rotted" in (refused.remark or "")) == (1, True)
    log[position : position + 4] = size.to_bytes(4, "big")
    assert client.pop_bodies() == [b"before", BODY, b"behind"]
