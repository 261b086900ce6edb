"""Job that pins a log. Its part stays while retention would trim older messages.

After the pin's end that part is trimmed, and both modes give the same rows of the rest.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from dledger_client import Admin, MessageQueue, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_spark.errors import DataLossError
from dledger_spark.filters import PushedFilters
from dledger_spark.options import read_options
from dledger_spark.partitions import LogSlice, QueueRange
from dledger_spark.planning import BatchPlanner
from dledger_spark.reading import read_partition
from tests.waiting import wait_until

CONFIG = "segment_bytes = 1048576\nretention_bytes = 3145728\nsnapshot_interval_s = 1\n"
TOPIC = "pinned"
OTHER = "other"
QUEUES = 2
PATIENCE_SECONDS = 120.0
Row = tuple[str, int, int, bytes]


def first_position(cluster: LocalCluster, group: str) -> int:
    """Return the first position of a group's log, on the follower that has kept the most."""
    found = [cluster.status(node) for node in cluster.members(group) if node != cluster.leader(group)]
    return min(status.first_position for status in found if status is not None)


def begins_behind(cluster: LocalCluster, group: str, position: int) -> bool:
    return first_position(cluster, group) > position


def send(cluster: LocalCluster, topic: str, group: str) -> list[bytes]:
    """Send 6 MiB to a group's queues of a topic, and return the bodies."""
    with SyncProducer(cluster.namesrv, group="pinned") as producer:
        bodies = [b"%08d" % number * 512 for number in range(1536)]
        for start in range(0, len(bodies), 64):
            queue = MessageQueue(topic, group, start // 64 % QUEUES)
            producer.send_batch(topic, bodies[start : start + 64], queue=queue)
    return bodies


async def give_up_pins(cluster: LocalCluster) -> None:
    async with Admin(cluster.namesrv) as admin:
        for pin in (await admin.pins())["broker-a"]:
            await admin.unpin(pin.name)


def planned(cluster: LocalCluster, **options: str) -> list[LogSlice | QueueRange]:
    given = {"namesrv": cluster.namesrv, "subscribe": TOPIC, "columns": "broker_group,queue_id,offset,value"}
    return list(BatchPlanner(read_options(given | options, "batch"), PushedFilters()).partitions())


def rows(parts: list[LogSlice | QueueRange]) -> list[Row]:
    found = [tuple(row.values()) for part in parts for batch in read_partition(part) for row in batch.to_pylist()]
    return sorted(found)


@pytest.mark.long
def test_pinned_messages_stay_until_release_and_both_modes_read_the_rest() -> None:
    with LocalCluster(groups=2, config=CONFIG) as cluster, SyncAdmin(cluster.namesrv) as admin:
        for topic in (TOPIC, OTHER):
            admin.create_topic(topic, queues=QUEUES)
        bodies = send(cluster, TOPIC, "broker-a")
        pinned = planned(cluster, pinLease="10m")
        lossy = planned(cluster, pinLease="0", failOnDataLoss="false")
        whole = rows(pinned)
        assert sorted(row[3] for row in whole) == bodies
        # Each group checks every ten seconds. While one trims twice, the other checks at least once.
        send(cluster, OTHER, "broker-a")
        for _ in range(2):
            before = first_position(cluster, "broker-b")
            send(cluster, OTHER, "broker-b")
            wait_until(partial(begins_behind, cluster, "broker-b", before))
        assert first_position(cluster, "broker-a") == 0
        assert rows(pinned) == whole
        asyncio.run(give_up_pins(cluster))
        wait_until(partial(begins_behind, cluster, "broker-a", 0))
        with pytest.raises(DataLossError, match="of broker-a's log are gone"):
            rows(pinned)
        send(cluster, TOPIC, "broker-a")
        kept = rows(planned(cluster))
        assert kept == rows(planned(cluster, mode="queues"))
        left = rows(lossy)
        assert len(left) < len(whole)
        assert set(left) == set(whole) & set(kept)
