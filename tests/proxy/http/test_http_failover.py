"""A leader that is killed delays requests over HTTP, and loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio

import pytest
from cluster_checks import eventually
from cluster_fronts import proxy
from http_fronts import Caller

from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.long

SENDERS, MESSAGES, WITHIN_S = 4, 60, 90


async def test_sends_and_receipts_survive_the_leader_and_a_proxy(cluster_of_three: LocalCluster) -> None:
    namesrv = cluster_of_three.namesrv
    async with asyncio.timeout(WITHIN_S), proxy(namesrv) as two:
        async with proxy(namesrv) as one:
            held = await _take_one(one)
            kill = asyncio.create_task(_kill_after_some(cluster_of_three, one))
            await asyncio.gather(*(_send_all((one, two)[number % 2], number) for number in range(SENDERS)))
            await kill
        assert await _ack(two, [held]) == ["done"], "the leader and the proxy that gave the receipt out are gone"
        wanted = {f"{sender}-{number}" for sender in range(SENDERS) for number in range(MESSAGES)}
        found: dict[str, int] = {}
        while not wanted.issubset(found):
            body = {"group": "workers", "max": 32, "wait_seconds": 1}
            answer = await two.post("/v1/topics/survivors/receive", body)
            for message in answer.json["messages"] if answer.status == 200 else ():
                assert (await _ack(two, [message["receipt"]])) == ["done"]
                found[message["text"]] = found.get(message["text"], 0) + 1
        assert {text: count for text, count in found.items() if count > 1} == {}, "idempotent sends are stored once"


async def _take_one(caller: Caller) -> str:
    assert (await caller.post("/v1/topics/survivors/messages", {"text": "held"})).status == 200
    body = {"group": "workers", "wait_seconds": 20, "invisible_seconds": 600}
    (message,) = (await caller.post("/v1/topics/survivors/receive", body)).json["messages"]
    return message["receipt"]


async def _kill_after_some(cluster: LocalCluster, caller: Caller) -> None:
    async def some_are_stored() -> bool:
        queues = (await caller.get("/v1/topics/survivors")).json["queues"]
        return sum(queue["end"] for queue in queues) >= SENDERS * 5

    await eventually(WITHIN_S, "sending", some_are_stored)
    await asyncio.to_thread(cluster.kill_leader)


async def _send_all(caller: Caller, sender: int) -> None:
    """Send messages one after the other, each until it is stored, as a careful script does."""
    for number in range(MESSAGES):
        text = f"{sender}-{number}"
        while True:
            headers = {"Idempotency-Key": text}
            answer = await caller.post("/v1/topics/survivors/messages", {"text": text}, headers=headers)
            if answer.status == 200:
                break
            assert answer.status in {503, 504}, answer.json


async def _ack(caller: Caller, receipts: list[str]) -> list[str]:
    while True:
        answer = await caller.post("/v1/topics/survivors/ack", {"group": "workers", "receipts": receipts})
        if answer.status == 200:
            return [row["state"] for row in answer.json["results"]]
        assert answer.status in {503, 504}, answer.json
