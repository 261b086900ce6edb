"""Messages that brokers hand out and the group does not want, or cannot read: they are nobody else's trouble."""

from __future__ import annotations

import asyncio

import msgspec
from client_fakes import FakeCluster, fake_cluster

from dledger_client import SimpleConsumer
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.filters.tags import tag_code
from dledger_remoting.headers import encode_ext
from dledger_remoting.headers_pop import PopResponseHeader
from dledger_remoting.record import SYS_COMPRESSED, MessageRecord, encode_record

WANTED, SAME_CODE = "Aa", "BB"


def store(cluster: FakeCluster, tag: str) -> MessageRecord:
    return cluster.group.store("T", 0, tag.encode(), f"TAGS\x01{tag}\x02".encode())


def give_out(cluster: FakeCluster, *pops: list[MessageRecord]) -> None:
    """Have pops answered with these messages, one list after the other, and further ones with none."""
    left = list(pops)

    def pop(command: RemotingCommand) -> RemotingCommand:
        found = left.pop(0) if left else []
        starts = f"0 0 {found[0].queue_offset}" if found else ""
        header = PopResponseHeader(1_000, 30_000, 0, 0, starts, "")
        code = ResponseCode.SUCCESS if found else ResponseCode.POLLING_TIMEOUT
        return make_response(command, code, ext=encode_ext(header), body=b"".join(map(encode_record, found)))

    cluster.group.nodes[0].on[RequestCode.POP_MESSAGE] = pop


def take_acks(cluster: FakeCluster) -> list[int]:
    """Have acknowledgements succeed; the offsets they name come into the list."""
    acked: list[int] = []

    def ack(command: RemotingCommand) -> RemotingCommand:
        acked.append(int(command.ext["offset"]))
        return make_response(command, 0)

    cluster.group.nodes[0].on[RequestCode.ACK_MESSAGE] = ack
    return acked


async def received(consumer: SimpleConsumer, wait: float) -> list[bytes]:
    async with asyncio.timeout(5):
        return [message.body for message in await consumer.receive(wait=wait)]


async def test_an_unwanted_message_is_acknowledged_and_the_next_pop_is_waited_for() -> None:
    assert tag_code(WANTED) == tag_code(SAME_CODE)
    async with fake_cluster(nodes=1, topics={"T": 1}) as cluster:
        unwanted, wanted = store(cluster, SAME_CODE), store(cluster, WANTED)
        give_out(cluster, [unwanted], [wanted])
        acked = take_acks(cluster)
        async with SimpleConsumer(cluster.namesrv, "CG", "T", filter=WANTED) as consumer:
            assert await received(consumer, 4.0) == [b"Aa"]
        assert acked == [unwanted.queue_offset]


async def test_what_is_wanted_of_an_answer_is_for_the_caller_to_acknowledge() -> None:
    async with fake_cluster(nodes=1, topics={"T": 1}) as cluster:
        records = [store(cluster, tag) for tag in (WANTED, SAME_CODE, WANTED)]
        give_out(cluster, records)
        acked = take_acks(cluster)
        async with SimpleConsumer(cluster.namesrv, "CG", "T", filter=WANTED) as consumer:
            assert await received(consumer, 4.0) == [b"Aa", b"Aa"]
        assert acked == [1], "before the consumer is closed, although nothing was received afterwards"


async def test_nothing_but_unwanted_messages_is_nothing() -> None:
    async with fake_cluster(nodes=1, topics={"T": 1}) as cluster:
        unwanted = [store(cluster, SAME_CODE) for _ in range(2)]
        give_out(cluster, unwanted)
        acked = take_acks(cluster)
        async with SimpleConsumer(cluster.namesrv, "CG", "T", filter=WANTED) as consumer:
            assert await received(consumer, 0.0) == []
        assert sorted(acked) == [0, 1]


async def test_what_cannot_be_acknowledged_fails_nobody() -> None:
    """It comes again, and is rejected then."""
    async with fake_cluster(nodes=1, topics={"T": 1}) as cluster:
        unwanted, wanted = store(cluster, SAME_CODE), store(cluster, WANTED)
        give_out(cluster, [unwanted], [wanted])
        refused: list[RemotingCommand] = []

        def refuse(command: RemotingCommand) -> RemotingCommand:
            refused.append(command)
            return make_response(command, ResponseCode.SYSTEM_ERROR, "not today")

        cluster.group.nodes[0].on[RequestCode.ACK_MESSAGE] = refuse
        async with SimpleConsumer(cluster.namesrv, "CG", "T", filter=WANTED) as consumer:
            assert await received(consumer, 4.0) == [b"Aa"]
        assert len(refused) == 1


async def test_an_acknowledgement_that_nobody_answers_holds_up_no_other_message(monkeypatch) -> None:
    monkeypatch.setattr("dledger_client.simple.REJECT_SECONDS", 0.05)
    async with fake_cluster(nodes=1, topics={"T": 1}) as cluster:
        unwanted, wanted = store(cluster, SAME_CODE), store(cluster, WANTED)
        give_out(cluster, [unwanted], [wanted])
        cluster.group.nodes[0].on[RequestCode.ACK_MESSAGE] = lambda _: None
        async with SimpleConsumer(cluster.namesrv, "CG", "T", filter=WANTED) as consumer:
            assert await received(consumer, 4.0) == [b"Aa"]


async def test_a_message_that_cannot_be_read_keeps_nobody_from_the_others(caplog) -> None:
    async with fake_cluster(nodes=1, topics={"T": 1}) as cluster:
        records = [store(cluster, WANTED) for _ in range(3)]
        give_out(cluster, [records[0], msgspec.structs.replace(records[1], sys_flag=SYS_COMPRESSED), records[2]])
        acked = take_acks(cluster)
        async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
            assert await received(consumer, 4.0) == [b"Aa", b"Aa"]
        assert acked == [], "it comes again, for whoever can read it"
    assert "the message at offset 1 of T/" in caplog.text
