"""No message is lost when a leader and a worker are killed, and only messages of that worker are handled twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from faulty_worker import make_broker, noted

from dledger_client import Admin
from dledger_client.testing import LocalCluster
from dledger_faststream import DledgerBroker, Mode

WORKER = Path(__file__).with_name("faulty_worker.py")
AT_ONCE = 64
QUEUES = 8
WITHIN_S = 240.0


async def come(condition, victim: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a condition on the notes of the workers holds."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            assert victim is None or victim.poll() is None, "the worker ended by itself"
            await asyncio.sleep(0.01)


async def members_are(admin: Admin, group: str, count: int) -> None:
    """Wait until the brokers know so many members of a group."""
    async with asyncio.timeout(WITHIN_S):
        while len(await admin.members(group)) != count:  # noqa: ASYNC110 -- brokers tell nobody else
            await asyncio.sleep(0.01)


async def some_are_committed(admin: Admin, group: str, topic: str) -> None:
    """Wait until the group has committed messages of all queues, but of one whose first message hangs."""
    async with asyncio.timeout(WITHIN_S):
        while sum(bool(status.committed) for status in await admin.progress(group, topic)) < QUEUES - 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def publish_all(name_server: str, topic: str, numbers: range) -> None:
    """Publish numbers, many at once, each stored once."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with DledgerBroker(name_server, logger=None, idempotent=True, timeout=60.0) as broker:

        async def publish(number: int) -> None:
            async with gate:
                await broker.publish(number, topic)

        async with asyncio.TaskGroup() as tasks:
            for number in numbers:
                tasks.create_task(publish(number))


def has_gone_on(file: Path, before: int) -> bool:
    return len(noted(file, "begin")) > before


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, WORKER, *arguments])


def kill(victim: subprocess.Popen[bytes]) -> None:
    victim.kill()
    victim.wait()


@pytest.mark.parametrize(
    ("mode", "count", "first"),
    [
        ("push", 300, "worker"),
        pytest.param("push", 10_000, "leader", marks=pytest.mark.long),
        pytest.param("simple", 10_000, "leader", marks=pytest.mark.long),
        pytest.param("ordered", 10_000, "leader", marks=pytest.mark.long),
    ],
)
async def test_a_killed_leader_and_a_killed_worker_lose_nothing(
    cluster: LocalCluster, topic: str, group: str, tmp_path: Path, mode: Mode, count: int, first: str
) -> None:
    """The worker has one message in work all the time, although the group commits, when it is killed.

    A new leader that has never heard of the killed worker is the harder case, which takes the group longer.
    """
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    killed, living = tmp_path / "killed", tmp_path / "living"
    victim = start(cluster.namesrv, topic, group, mode, str(killed))
    broker = make_broker(cluster.namesrv, topic, group, mode, living)
    try:
        async with broker, Admin(cluster.namesrv) as admin:
            await broker.start()
            if mode != "simple":
                await members_are(admin, group, 2)
            await publish_all(cluster.namesrv, topic, range(count // 2))
            if mode != "simple":
                await some_are_committed(admin, group, topic)
            publishing = asyncio.create_task(publish_all(cluster.namesrv, topic, range(count // 2, count)))
            await come(partial(has_gone_on, killed, len(noted(killed, "begin"))), victim)
            if first == "worker":
                kill(victim)
                await members_are(admin, group, 1)
            await asyncio.to_thread(cluster.kill_leader)
            if first == "leader":
                await come(partial(has_gone_on, killed, len(noted(killed, "begin"))), victim)
                kill(victim)
            await publishing
            await come(lambda: noted(killed, "end").keys() | noted(living, "end").keys() >= set(range(count)))
    finally:
        kill(victim)
    begun = noted(killed, "begin") + noted(living, "begin")
    repeated = {number for number, times in begun.items() if times > 1}
    print(f"{mode}: {count} messages, {len(repeated)} handled more than once, {begun.total() - count} times in all")
    assert set(begun) == set(range(count))
    assert repeated <= noted(killed, "begin").keys()
