"""Store times of a term never go back, whoever has a record stored and whatever the clock does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served_broker import ServedBroker, make_served_broker, records

from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.parts import Context, Feature, Part
from dledger_broker.kernel.writer import LogWriter, NewRecord
from dledger_broker.testing import START_MS, BrokerInMemory
from dledger_broker.testing.environment import FakeEnvironment
from dledger_broker.testing.node import NODE_ID


class Writes(Part):
    """A feature that the broker's own records come from."""

    def __init__(self, context: Context) -> None:
        self.writer: LogWriter = context.writer


@pytest.fixture
def broker() -> ServedBroker:
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    broker = make_served_broker(config, BrokerInMemory(), more=[Feature(name="writes", build=Writes)])
    broker.memory.create_topic("T1")
    return broker


def times(monkeypatch: pytest.MonkeyPatch, *wall_ms: int) -> Iterator[None]:
    """Set the wall clock to one time after the other."""
    for now_ms in wall_ms:
        monkeypatch.setattr(FakeEnvironment, "wall_ms", lambda _, now_ms=now_ms: now_ms)
        yield


def test_sends_and_the_brokers_own_records_have_one_clock(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, client = broker.service.parts[Writes].writer, broker.client()
    clock = times(monkeypatch, START_MS + 9, START_MS + 3, START_MS + 20, START_MS + 1)
    own = NewRecord(topic="T1", queue_id=0, body=b"own", born_ms=0, born_host=bytes(8))
    for _ in range(2):
        next(clock)
        client.send_message("T1", b"sent")
        next(clock)
        writer.write([own], done=lambda _: None)
        broker.settle()
    stored = records(client.pull("T1"))
    assert [record.body for record in stored] == [b"sent", b"own"] * 2
    assert [record.store_timestamp - START_MS for record in stored] == [9, 9, 20, 20]
