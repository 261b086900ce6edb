"""Revivals of more than one unit holds: what is delivered again comes in several units, each message once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger_broker.features.pop.commands import Revive
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pop.revival import MAX_UNIT_BYTES, Revivals
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.units import FixedRows, NewRecord, Told
from tests.broker.features.pop.pop_calls import (
    FOUND,
    HIDDEN_S,
    ack,
    pop,
    queue_of,
    retry_of,
    table_of,
    wait,
    with_group,
    with_revivals,
)


@dataclass(frozen=True)
class Unit:
    """What one unit of revivals says: the bodies of its copies, and the deliveries of which it ends bits."""

    bodies: list[bytes]
    pop_times_ms: set[int]


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return with_revivals(with_group(make_broker()))


@pytest.fixture
def units(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """The units that revive something, as they are written."""
    found: list[Unit] = []
    writer = broker.service.writer
    write = writer.write

    def keep(
        records: Sequence[NewRecord],
        commands: Sequence[Command | FixedRows] = (),
        *,
        done: Told,
        privileged: bool = False,
    ) -> None:
        write(records, commands, done=done, privileged=privileged)
        revivals = [command for command in commands if isinstance(command, Revive)]
        if revivals:
            pop_times = {row.pop_time_ms for command in revivals for row in command.rows}
            found.append(Unit([record.body for record in records], pop_times))

    monkeypatch.setattr(writer, "write", keep)
    return found


def job_of(broker: ServedBroker) -> Revivals:
    (job,) = broker.service.parts[PopRequests].jobs
    assert isinstance(job, Revivals)
    return job


def large(number: int, size: int) -> bytes:
    return bytes([number]) * size


def pop_all_again(client: FakeClient) -> list[bytes]:
    """The first bytes of what comes again, all of which is acknowledged."""
    found: list[bytes] = []
    while again := pop(client):
        assert [ack(client, message) for message in again] == [FOUND] * len(again)
        found += [message.body[:1] for message in again]
    return sorted(found)


def test_a_delivery_that_is_too_large_for_one_unit_is_revived_in_several_and_each_message_comes_once(
    broker: ServedBroker, client: FakeClient, units: list[Unit]
) -> None:
    """The log's segments are so small that a quarter of one, which no unit exceeds, holds two of these messages."""
    broker.memory.log.segment_bytes = 256 << 10
    for number in range(7):
        client.send_message("T1", large(number, 25_000))
    assert len(pop(client)) == 7
    (delivery,) = queue_of(broker)
    wait(broker, HIDDEN_S + 2)
    assert [[body[0] for body in unit.bodies] for unit in units] == [[0, 1], [2, 3], [4, 5], [6]]
    assert {pop_ms for unit in units for pop_ms in unit.pop_times_ms} == {delivery.pop_time_ms}
    assert broker.memory.queue(retry_of()).max_offset == job_of(broker).revived == 7
    assert pop_all_again(client) == [bytes([number]) for number in range(7)]
    wait(broker, 2 * HIDDEN_S)
    assert (pop(client), table_of(broker).open_count, len(units)) == ([], 0, 4)


def test_acknowledged_messages_of_such_a_delivery_take_no_room_in_its_units(
    broker: ServedBroker, client: FakeClient, units: list[Unit]
) -> None:
    broker.memory.log.segment_bytes = 256 << 10
    for number in range(4):
        client.send_message("T1", large(number, 25_000))
    popped = pop(client)
    assert [ack(client, popped[number]) for number in (0, 2)] == [FOUND, FOUND]
    wait(broker, HIDDEN_S + 2)
    assert [[body[0] for body in unit.bodies] for unit in units] == [[1, 3]]
    assert pop_all_again(client) == [b"\x01", b"\x03"]


def test_deliveries_that_fit_no_unit_together_are_revived_in_as_few_as_hold_them(
    broker: ServedBroker, client: FakeClient, units: list[Unit]
) -> None:
    """A large segment: 256 KiB is the limit, whatever a quarter of the segment is."""
    broker.memory.log.segment_bytes = 8 << 20
    size = MAX_UNIT_BYTES * 3 // 10
    for number in range(8):
        client.send_message("T1", large(number, size))
    while pop(client):
        pass
    assert table_of(broker).open_count == 8
    wait(broker, HIDDEN_S + 2)
    assert [[body[0] for body in unit.bodies] for unit in units] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert pop_all_again(client) == [bytes([number]) for number in range(8)]


def test_a_message_that_is_larger_than_a_unit_may_be_travels_alone(
    broker: ServedBroker, client: FakeClient, units: list[Unit]
) -> None:
    for number, size in enumerate((10, MAX_UNIT_BYTES + 1, 10, 10)):
        client.send_message("T1", large(number, size))
    while pop(client):
        pass
    assert table_of(broker).open_count == 4
    wait(broker, HIDDEN_S + 2)
    assert [[body[0] for body in unit.bodies] for unit in units] == [[0], [1], [2, 3]]
    assert pop_all_again(client) == [bytes([number]) for number in range(4)]
