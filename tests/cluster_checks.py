"""Checks and helpers for tests that break a cluster of real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Container, Iterable
from pathlib import Path

from dledger_client import Admin, ClientError, MessageQueue, NoRouteError, PullConsumer, ReceivedMessage, SyncAdmin
from dledger_client.testing import LocalCluster, NodeStatus

READ_SECONDS = 30.0
CATCH_UP_SECONDS = 60.0


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until `condition` holds or the time is over, and return whether it held."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.03)
    return True


def status_of(cluster: LocalCluster, node_id: str) -> NodeStatus:
    """Return a node's status. Repeat the request until it is answered: one answer may take longer than a second."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while (status := cluster.status(node_id)) is None:
        assert time.monotonic() < deadline, f"{node_id} does not answer"
        time.sleep(0.03)
    return status


def dledger(*arguments: str, timeout: float = 120.0, codes: Container[int] = (0,)) -> str:
    """Run the `dledger` command, and return its output. Fail if its exit code is not one of `codes`."""
    command = [sys.executable, "-m", "dledger_admin", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode in codes, f"dledger {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


async def read_topic(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """Return every message of a topic, queue by queue in order, from first to end offset at the time of the call."""
    messages: list[ReceivedMessage] = []
    async with Admin(namesrv) as admin, PullConsumer(namesrv, "checker", timeout=READ_SECONDS) as consumer:
        queues = await _queues(consumer, topic)
        await consumer.assign(queues)
        await consumer.seek_to_begin()
        ends = {queue: await admin.end_offset(queue) for queue in queues}
        async with asyncio.timeout(READ_SECONDS):
            while any(consumer.positions[queue] < end for queue, end in ends.items()):
                messages += await consumer.poll(1000, timeout=1.0)
    return sorted(messages, key=lambda message: (message.queue, message.queue_offset))


async def _queues(consumer: PullConsumer, topic: str) -> tuple[MessageQueue, ...]:
    """Return a topic's queues. The name server learns of a new topic a moment after a send has created it."""
    async with asyncio.timeout(READ_SECONDS):
        while True:
            try:
                return await consumer.queues(topic)
            except NoRouteError:
                await asyncio.sleep(0.02)


def create_topic(cluster: LocalCluster, topic: str, queues: int = 4) -> None:
    """Create a topic in every group, and wait until the name server knows it.

    A stock client that does not find the topic asks again only after 30 s.
    """
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=queues)


def stored_messages(cluster: LocalCluster, topic: str) -> list[ReceivedMessage]:
    """Call `read_topic` in a test without an event loop."""
    return asyncio.run(read_topic(cluster.namesrv, topic))


def bodies_of(messages: Iterable[ReceivedMessage]) -> list[str]:
    """Return the messages' bodies as text."""
    return [message.body.decode() for message in messages]


def assert_offsets_unique_and_dense(messages: Iterable[ReceivedMessage]) -> None:
    """Check that each queue's messages have the offsets 0, 1, 2, … without a repetition or a gap."""
    offsets: dict[MessageQueue, list[int]] = {}
    for message in messages:
        offsets.setdefault(message.queue, []).append(message.queue_offset)
    for queue, found in offsets.items():
        assert found == list(range(len(found))), f"offsets of {queue}"


def stop_and_compare_logs(cluster: LocalCluster, group: str = "broker-a") -> int:
    """Let the replicas catch up, stop the cluster, and compare their logs byte by byte.

    The cluster needs a `data_dir` of its own, which outlives it. Return the number of bytes on which all replicas
    agreed.
    """
    cluster.wait_ready(timeout=CATCH_UP_SECONDS)
    directories = [cluster.data_dir / node_id for node_id in cluster.members(group)]
    committed = max(status_of(cluster, node_id).commit_index for node_id in cluster.members(group))
    cluster.stop()
    return compare_logs(directories, committed)


def compare_logs(directories: list[Path], committed: int) -> int:
    """Compare the logs of stopped nodes, and return the end position of the comparison.

    Each log must hold at least the entries up to index `committed`.
    """
    report = json.loads(dledger("log", "verify", *map(str, directories), "-o", "json"))
    assert report["ok"], report
    for log in report["logs"]:
        assert log["commit_index"] >= committed, f"{log['directory']} has lost committed entries: {log}"
    end = int(report["comparison"]["end_position"])
    assert end > 0
    return end


async def eventually(seconds: float, description: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Await `condition()` until it is true. Errors of the client count as false."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            if await condition():
                return
        except ClientError:
            pass
        assert asyncio.get_running_loop().time() < deadline, f"not {description} within {seconds:g} s"
        await asyncio.sleep(0.05)
