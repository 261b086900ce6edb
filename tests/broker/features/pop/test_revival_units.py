"""Revivals of more than one unit holds: messages are delivered again in several units, each message once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from served_broker import ServedBroker

from dledger_broker.features.pop.commands import Revive
from dledger_broker.features.pop.revival import MAX_UNIT_BYTES
from dledger_broker.kernel.units import NewRecord
from tests.broker.features.pop.pop_calls import FOUND, HIDDEN_S, Popper, retry_of, revivals_of


class Unit(NamedTuple):
    """Unit of revivals: the first bytes of the bodies of its copies, and the deliveries of which it ends bits."""

    copies: list[int]
    pop_times_ms: set[int]


@pytest.fixture
def units(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """Return a list of the units that revive something, as they are written."""
    found: list[Unit] = []
    write = broker.service.writer.write

    def keep(records: Sequence[NewRecord], commands: Sequence[object] = (), **keywords: Any) -> None:
        write(records, commands, **keywords)  # type: ignore[arg-type]
        if revivals := [command for command in commands if isinstance(command, Revive)]:
            pop_times = {row.pop_time_ms for command in revivals for row in command.rows}
            found.append(Unit([record.body[0] for record in records], pop_times))

    monkeypatch.setattr(broker.service.writer, "write", keep)
    return found


def store(client: Popper, *sizes: int) -> None:
    """Store messages of these sizes, of which each byte is the number of its message."""
    client.store(*(bytes([number]) * size for number, size in enumerate(sizes)))


def pop_all_again(client: Popper) -> list[int]:
    """Pop and acknowledge all messages that come again, and return their numbers."""
    found: list[int] = []
    while again := client.pop():
        assert [client.ack(message) for message in again] == [FOUND] * len(again)
        found += [message.body[0] for message in again]
    return sorted(found)


def test_a_delivery_too_large_for_one_unit_is_revived_once_in_several_units(client: Popper, units: list[Unit]) -> None:
    """No unit exceeds a quarter of a segment, which holds two messages here."""
    client.broker.memory.log.segment_bytes = 256 << 10
    store(client, *[25_000] * 7)
    assert len(client.pop()) == 7
    (delivery,) = client.queue()
    client.wait(HIDDEN_S + 2)
    assert [unit.copies for unit in units] == [[0, 1], [2, 3], [4, 5], [6]]
    assert {pop_ms for unit in units for pop_ms in unit.pop_times_ms} == {delivery.pop_time_ms}
    assert client.broker.memory.queue(retry_of()).max_offset == revivals_of(client.broker).revived == 7
    assert pop_all_again(client) == list(range(7))
    client.wait(2 * HIDDEN_S)
    assert (client.pop(), client.table.open_count, len(units)) == ([], 0, 4)


def test_acknowledged_messages_of_a_delivery_take_no_room_in_revival_units(client: Popper, units: list[Unit]) -> None:
    client.broker.memory.log.segment_bytes = 256 << 10
    store(client, *[25_000] * 4)
    popped = client.pop()
    assert [client.ack(popped[number]) for number in (0, 2)] == [FOUND, FOUND]
    client.wait(HIDDEN_S + 2)
    assert [unit.copies for unit in units] == [[1, 3]]
    assert pop_all_again(client) == [1, 3]


@pytest.mark.parametrize(
    ("sizes", "segment_bytes", "expected"),
    [
        ([MAX_UNIT_BYTES * 3 // 10] * 8, 8 << 20, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ([10, MAX_UNIT_BYTES + 1, 10, 10], None, [[0], [1], [2, 3]]),
    ],
    ids=["at most 256 KiB, whatever a quarter of the segment is", "a message larger than the limit in its own unit"],
)
def test_deliveries_are_revived_in_as_few_units_as_hold_them(
    client: Popper, units: list[Unit], sizes: list[int], segment_bytes: int | None, expected: list[list[int]]
) -> None:
    log = client.broker.memory.log
    log.segment_bytes = segment_bytes or log.segment_bytes
    store(client, *sizes)
    while client.pop():
        pass
    assert client.table.open_count == len(sizes)
    client.wait(HIDDEN_S + 2)
    assert [unit.copies for unit in units] == expected
    assert pop_all_again(client) == list(range(len(sizes)))
