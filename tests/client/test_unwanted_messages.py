"""Messages that a group does not want or cannot read disturb no other message."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from client_fakes import FakeCluster, answer_to_pop, answering, refusing

from dledger_client import SimpleConsumer
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.filters.tags import tag_code
from dledger_remoting.record import SYS_COMPRESSED, MessageRecord

CLUSTER = {"nodes": 1, "topics": {"T": 1}}
WANTED, SAME_CODE = "Aa", "BB"


def store(cluster: FakeCluster, tag: str) -> MessageRecord:
    return cluster.group.store("T", 0, tag.encode(), f"TAGS\x01{tag}\x02".encode())


def give_out(cluster: FakeCluster, *pops: list[MessageRecord]) -> None:
    """Answer pops with these messages, one list after the other, and later pops with none."""
    left = list(pops)
    cluster.answer(RequestCode.POP_MESSAGE, lambda command: answer_to_pop(command, left.pop(0) if left else []))
    cluster.answer(RequestCode.ACK_MESSAGE, answering())


def acked(cluster: FakeCluster) -> list[int]:
    return sorted(int(command.ext["offset"]) for command in cluster.requests(RequestCode.ACK_MESSAGE))


async def received(consumer: SimpleConsumer, wait: float) -> list[bytes]:
    async with asyncio.timeout(5):
        return [message.body for message in await consumer.receive(wait=wait)]


STORIES = {
    "the next pop is waited for": ([[SAME_CODE], [WANTED]], 4.0, [b"Aa"], [0]),
    "one of an answer is unwanted": ([[WANTED, SAME_CODE, WANTED]], 4.0, [b"Aa", b"Aa"], [1]),
    "only unwanted messages come": ([[SAME_CODE, SAME_CODE]], 0.0, [], [0, 1]),
}


@pytest.mark.parametrize(("pops", "wait", "wanted", "unwanted"), STORIES.values(), ids=STORIES)
async def test_the_client_acknowledges_unwanted_messages_and_returns_the_others(cluster, pops, wait, wanted, unwanted):
    """The client does so before it is closed, although nothing is received afterwards."""
    assert tag_code(WANTED) == tag_code(SAME_CODE)
    give_out(cluster, *[[store(cluster, tag) for tag in tags] for tags in pops])
    async with SimpleConsumer(cluster.namesrv, "CG", "T", filter=WANTED) as consumer:
        assert await received(consumer, wait) == wanted
    assert acked(cluster) == unwanted


@pytest.mark.parametrize("answer", [refusing(ResponseCode.SYSTEM_ERROR, "not today"), lambda _: None])
async def test_an_acknowledgement_that_fails_or_is_not_answered_delays_no_receive(cluster, answer, monkeypatch):
    """The message comes again, and is rejected then."""
    monkeypatch.setattr("dledger_client.simple.REJECT_SECONDS", 0.05)
    give_out(cluster, [store(cluster, SAME_CODE)], [store(cluster, WANTED)])
    cluster.answer(RequestCode.ACK_MESSAGE, answer)
    async with SimpleConsumer(cluster.namesrv, "CG", "T", filter=WANTED) as consumer:
        assert await received(consumer, 4.0) == [b"Aa"]
    assert acked(cluster) == [0]


async def test_an_unreadable_message_does_not_hide_the_others(cluster, caplog):
    records = [store(cluster, WANTED) for _ in range(3)]
    give_out(cluster, [records[0], msgspec.structs.replace(records[1], sys_flag=SYS_COMPRESSED), records[2]])
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        assert await received(consumer, 4.0) == [b"Aa", b"Aa"]
    assert acked(cluster) == [], "it comes again, for whoever can read it"
    assert "the message at offset 1 of T/" in caplog.text
