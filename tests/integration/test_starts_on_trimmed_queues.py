"""In queues that retention has trimmed, new consumer groups begin at the first kept message, or at a later time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import pytest
from cluster_checks import read_topic

from dledger_client import MessageQueue, PushConsumer, ReceivedMessage, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster

TOPIC = "trimmed"
SEGMENT_BYTES = 1 << 20
SMALL = f"segment_bytes = {SEGMENT_BYTES}\nretention_bytes = {2 * SEGMENT_BYTES}\nsnapshot_interval_s = 1\n"
WITHIN_S = 60.0
QUEUES = [MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in range(2)]


@dataclass(frozen=True)
class Trimmed:
    """Cluster with a topic whose first messages are gone, and the time before the first of them, in ms since 1970."""

    cluster: LocalCluster
    first_ms: int

    async def kept(self) -> list[ReceivedMessage]:
        """Return the messages that are kept, queue by queue in order."""
        return await read_topic(self.cluster.namesrv, TOPIC)


@pytest.fixture(scope="module")
def trimmed() -> Iterator[Trimmed]:
    """Yield a cluster on which nothing more is trimmed while the tests run."""
    with (
        LocalCluster(nodes=1, config=SMALL) as cluster,
        SyncAdmin(cluster.namesrv) as admin,
        SyncProducer(cluster.namesrv, compress_over_bytes=None) as producer,
    ):
        admin.create_topic(TOPIC, queues=len(QUEUES))
        first_ms = int(time.time() * 1000)
        deadline = time.monotonic() + WITHIN_S
        number = 0
        while not all(admin.first_offset(queue) for queue in QUEUES):
            assert time.monotonic() < deadline, "nothing was trimmed"
            for queue in QUEUES:
                producer.send(TOPIC, b"%d" % number + bytes(50_000), queue=queue)
                number += 1
        admin.put_settings({"retention_bytes": "0"})
        yield Trimmed(cluster, first_ms)


async def begun(trimmed: Trimmed, start_from: str | int, expected: int) -> dict[int, list[int]]:
    """Wait for `expected` messages of a new group, and return their offsets by queue."""
    seen: dict[int, list[int]] = {queue.queue_id: [] for queue in QUEUES}
    group = f"from-{start_from}"
    async with (
        asyncio.timeout(WITHIN_S),
        PushConsumer(trimmed.cluster.namesrv, group, TOPIC, start_from=start_from) as consumer,  # type: ignore[arg-type]
    ):
        for _ in range(expected):
            message = await anext(consumer)
            seen[message.queue_id].append(message.queue_offset)
    return seen


def offsets_of(messages: list[ReceivedMessage]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {queue.queue_id: [] for queue in QUEUES}
    for queue_id, of_queue in groupby(messages, key=lambda message: message.queue_id):
        found[queue_id] = [message.queue_offset for message in of_queue]
    return found


@pytest.mark.parametrize("where", ["first", "the beginning of time", "when the first message was sent"])
async def test_a_new_group_that_starts_too_early_begins_at_the_first_kept_message(trimmed: Trimmed, where: str) -> None:
    times_ms = {"the beginning of time": 0, "when the first message was sent": trimmed.first_ms}
    kept = await trimmed.kept()
    assert all(offsets[0] > 0 for offsets in offsets_of(kept).values())
    assert await begun(trimmed, times_ms.get(where, "first"), len(kept)) == offsets_of(kept)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
async def test_a_new_group_that_starts_at_a_time_gets_messages_stored_from_then_on(
    trimmed: Trimmed, share: float
) -> None:
    kept = await trimmed.kept()
    times_ms = sorted(message.stored_timestamp_ms for message in kept)
    start_ms = times_ms[int(len(times_ms) * share)]
    later = [message for message in kept if message.stored_timestamp_ms >= start_ms]
    assert 0 < len(later) < len(kept)
    assert await begun(trimmed, start_ms, len(later)) == offsets_of(later)
