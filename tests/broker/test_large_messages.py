"""Messages of 4 MiB wait, are delivered, moved, sent back, committed and popped as small ones are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_in_process import Client, node_config, running

from dledger_broker.features.delay.messages import NAME as DELAY
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.features.pop.commands import NAME as POP
from dledger_broker.features.pop.table import POPPED
from dledger_broker.features.transactions.table import NAME as TRANSACTIONS
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import POP_CHECK_POINT, parse_properties
from dledger_remoting.record import MAX_MESSAGE_BYTES, MessageRecord, iter_records
from dledger_remoting.topics import HALF_TOPIC, retry_topic

BODY = bytes(range(256)) * (MAX_MESSAGE_BYTES // 256)
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"
POP_ANY = {
    "consumerGroup": "CG",
    "topic": "T1",
    "queueId": "-1",
    "maxMsgNums": "32",
    "pollTime": "15000",
    "bornTime": "0",
    "initMode": "0",
}
POLL = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}


@dataclass
class Served:
    """A node in this process, and its client."""

    broker: Broker
    client: Client

    async def pulled(self, **fields: str) -> MessageRecord:
        """The first message of a queue, for which the node is asked to wait."""
        while True:
            answer = await self.client.pull(0, **POLL, **fields)
            if answer.code == ResponseCode.SUCCESS:
                return next(iter_records(answer.body, verify_crc=True))
            assert answer.code in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}, answer.remark

    async def popped(self, hidden_ms: int) -> tuple[MessageRecord, RemotingCommand]:
        """The only message that a pop gets, for which the node is asked to wait, and the answer."""
        while True:
            answer = await self.client.call(RequestCode.POP_MESSAGE, {**POP_ANY, "invisibleTime": str(hidden_ms)})
            if answer.code == ResponseCode.SUCCESS:
                (record,) = iter_records(answer.body, verify_crc=True)
                return record, answer
            assert answer.code == ResponseCode.POLLING_TIMEOUT, answer.remark


async def founded(broker: Broker) -> None:
    """Wait until the features are active, and the topic of halves is there."""
    machine, changed = broker.machine, asyncio.Event()
    for changes in (machine.on_members_changed, machine.on_topics_changed):
        changes.append(changed.set)
    async with asyncio.timeout(20):
        while not all(map(machine.is_active, (DELAY, TRANSACTIONS, POP))) or machine.topic(HALF_TOPIC) is None:
            changed.clear()
            await changed.wait()


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    config = node_config(
        tmp_path,
        segment_bytes=16 << 20,
        max_message_bytes=MAX_MESSAGE_BYTES,
        delay_levels="1s 1s 1s",
        timer_max_delay_s=60,
    )
    async with running(config, bootstrap=True) as broker:
        await founded(broker)
        client = await Client.connect(config.port)
        try:
            yield Served(broker, client)
        finally:
            client.close()


async def test_it_is_delivered_when_it_is_due_and_comes_again_when_it_is_sent_back(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        assert (await node.client.send(BODY, i="TIMER_DELAY_MS\x01100\x02")).code == 0
        message = await node.pulled()
        assert message.body == BODY
        back = {"offset": str(message.physical_offset), "group": "CG", "delayLevel": "1"}
        assert (await node.client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        again = await node.pulled(topic=retry_topic("CG"))
        assert (again.body, again.reconsume_times) == (BODY, 1)


async def test_its_half_is_committed(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        sent = await node.client.send(BODY, i=HALF, f="4")
        end = {
            "producerGroup": "PG",
            "tranStateTableOffset": sent.ext["queueOffset"],
            "commitLogOffset": str(parse_offset_message_id(sent.ext["msgId"])[1]),
            "commitOrRollback": "8",
        }
        assert (await node.client.call(RequestCode.END_TRANSACTION, end)).code == 0
        assert (await node.pulled()).body == BODY


async def test_it_is_moved_out_of_the_way_of_a_trim(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        sent = await node.client.send(BODY, i="TIMER_DELAY_SEC\x0160\x02")
        position = parse_offset_message_id(sent.ext["msgId"])[1]
        moves, table = node.broker.service.parts[DueMessages].moves, node.broker.state.table(TIMERS)
        moves.want(position + 1, disk_full=False)
        async with asyncio.timeout(20):
            while table.below(position + 1).rows:  # noqa: ASYNC110 - moved by a job, told nobody
                await asyncio.sleep(0.01)
        assert (moves.moved, table.total.rows) == (1, 1)
        assert table.total.bytes > len(BODY)


async def test_it_is_popped_comes_again_and_is_acknowledged(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        assert (await node.client.send(BODY)).code == 0
        first, _ = await node.popped(1_000)
        assert first.body == BODY
        again, answer = await node.popped(60_000)
        assert (again.body, again.topic, again.reconsume_times) == (BODY, "T1", 1)
        point = parse_properties(again.properties)[POP_CHECK_POINT]
        place = {"consumerGroup": "CG", "topic": "%RETRY%CG_T1", "queueId": "0", "extraInfo": point, "offset": "0"}
        assert answer.ext["msgOffsetInfo"] == "1 0 0"
        assert (await node.client.call(RequestCode.ACK_MESSAGE, place)).code == 0
        assert node.broker.state.table(POPPED).open_count == 0
