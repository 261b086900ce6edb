"""Broker in memory with a topic, and what its queues and its disk hold."""

from __future__ import annotations

import pytest

from dledger.testing.disk import SimDisk
from dledger_broker.testing import BrokerInMemory


@pytest.fixture
def broker() -> BrokerInMemory:
    """Return a broker that leads and has the topic `orders` with 4 queues."""
    broker = BrokerInMemory()
    broker.create_topic("orders")
    return broker


def contents(broker: BrokerInMemory) -> dict[tuple[str, int], list[bytes]]:
    """Return the bodies of all readable messages, by queue."""
    return {
        (name, queue_id): broker.bodies(name, queue_id)
        for name, topic in broker.machine.state.topics.items()
        for queue_id, queue in sorted(topic.queues.items())
        if queue.max_offset
    }


def content(disk: SimDisk, path: str) -> bytes:
    """Return the content of a file of a simulated disk."""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
