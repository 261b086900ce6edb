"""The benchmark's crowd behaves as stock consumers do: each queue of a topic has one member's pull."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.many_clients import QUEUES, Crowd, Member, make_groups
from dledger_broker.node import Broker
from tests.broker.broker_in_process import node_config

NAMES = [(f"G{number}", f"T{number}") for number in range(4)]


def members(crowd: Crowd, number: int) -> list[Member]:
    return [Member(crowd, group, topic, f"{group}-m{number}") for group, topic in NAMES]


def shares(crowd: Crowd, group: str) -> list[int]:
    return sorted(queue for member in crowd.members if member.group == group for queue in member.share())


async def settled(crowd: Crowd, count: int) -> None:
    """Wait until each group has this number of members, and check that they share all queues."""
    await crowd.until_settled(count)
    assert [shares(crowd, group) for group, _ in NAMES] == [list(range(QUEUES))] * len(NAMES)


async def test_every_queue_of_every_group_has_one_member_through_storms(tmp_path: Path) -> None:
    broker = Broker(node_config(tmp_path), bootstrap=True)
    await broker.start()
    try:
        async with asyncio.timeout(60):
            while not broker.group.ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await make_groups(broker.config.port, NAMES)
            crowd = Crowd(broker.config.port)
            first = [members(crowd, number) for number in range(3)]
            await crowd.join([member for some in first for member in some])
            await settled(crowd, 3)
            crowd.notices = 0
            crowd.leave(first[1])
            await settled(crowd, 2)
            assert crowd.notices >= 2 * len(NAMES), "each of those that stayed was told"
            await crowd.join(members(crowd, 3))
            await settled(crowd, 3)
            crowd.leave(list(crowd.members))
    finally:
        await broker.stop()
