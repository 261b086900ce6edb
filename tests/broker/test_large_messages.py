"""Messages of 4 MiB wait, are delivered, moved, sent back, committed and popped as small messages are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_in_process import Client, node_config, running, until

from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.features.delay.messages import NAME as DELAY
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.recalls import records_with_key
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.features.pop.commands import NAME as POP
from dledger_broker.features.pop.table import POPPED
from dledger_broker.features.transactions.table import HALVES, HalfOutcome
from dledger_broker.features.transactions.table import NAME as TRANSACTIONS
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.hosts import HostAddress
from dledger_remoting.ids import offset_message_id, parse_offset_message_id
from dledger_remoting.properties import POP_CHECK_POINT, parse_properties
from dledger_remoting.record import MAX_MESSAGE_BYTES, MessageRecord, decode_record, iter_records
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, dead_letter_topic, retry_topic
from tests.broker.features.pop.pop_calls import pop_ext

BODY = bytes(range(256)) * (MAX_MESSAGE_BYTES // 256)
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"
POLL = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}


@dataclass
class Served:
    """Node in this process, and its client."""

    broker: Broker
    client: Client

    async def pulled(self, **fields: str) -> MessageRecord:
        """Return the first message of a queue. The node is asked to wait for it."""
        while True:
            answer = await self.client.pull(0, **POLL, **fields)
            if answer.code == ResponseCode.SUCCESS:
                return next(iter_records(answer.body, verify_crc=True))
            assert answer.code in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}, answer.remark

    async def popped(self, hidden_ms: int) -> tuple[MessageRecord, RemotingCommand]:
        """Pop the only message, for which the node is asked to wait, and return it with the answer."""
        while True:
            ext = pop_ext(pollTime="15000", invisibleTime=str(hidden_ms))
            answer = await self.client.call(RequestCode.POP_MESSAGE, ext)
            if answer.code == ResponseCode.SUCCESS:
                (record,) = iter_records(answer.body, verify_crc=True)
                return record, answer
            assert answer.code == ResponseCode.POLLING_TIMEOUT, answer.remark

    async def send_back(self, position: int, level: str, **fields: str) -> None:
        back = {"offset": str(position), "group": "CG", "delayLevel": level, **fields}
        assert (await self.client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0

    async def commit(self, position: int, queue_offset: int) -> None:
        """Commit a half."""
        end = {"producerGroup": "PG", "tranStateTableOffset": str(queue_offset), "commitLogOffset": str(position)}
        assert (await self.client.call(RequestCode.END_TRANSACTION, end | {"commitOrRollback": "8"})).code == 0


async def founded(broker: Broker) -> None:
    """Wait until the features are active and the topic of halves exists."""
    machine = broker.machine
    await until(lambda: all(map(machine.is_active, (DELAY, TRANSACTIONS, POP))) and machine.topic(HALF_TOPIC))


@asynccontextmanager
async def served(tmp_path: Path, **keys: ConfigValue) -> AsyncIterator[Served]:
    sizes = {"segment_bytes": 16 << 20, "max_message_bytes": MAX_MESSAGE_BYTES}
    config = node_config(tmp_path, **sizes, delay_levels="1s 1s 1s", timer_max_delay_s=60, **keys)
    async with running(config, bootstrap=True) as broker:
        await founded(broker)
        client = await Client.connect(config.port)
        try:
            yield Served(broker, client)
        finally:
            client.close()


async def test_a_large_message_is_delivered_when_due_after_a_send_back_and_as_a_dead_letter(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        assert (await node.client.send(BODY, i="TIMER_DELAY_MS\x01100\x02")).code == 0
        message = await node.pulled()
        assert message.body == BODY
        await node.send_back(message.physical_offset, "1")
        again = await node.pulled(topic=retry_topic("CG"))
        assert (again.body, again.reconsume_times) == (BODY, 1)
        sent = await node.client.send(BODY, i="TAGS\x01t\x02")
        own_id = sent.ext["msgId"]
        await node.send_back(parse_offset_message_id(own_id)[1], "-1", originMsgId=own_id)
        letter = await node.pulled(topic=dead_letter_topic("CG"))
        assert letter.body == BODY
        properties = parse_properties(letter.properties)
        expected = {"RETRY_TOPIC": "T1", "ORIGIN_MESSAGE_ID": own_id, "TAGS": "t"}
        assert properties.items() >= expected.items()


async def test_a_large_half_is_checked_given_up_and_reopened(tmp_path: Path) -> None:
    keys = {"transaction_timeout_ms": 1_000, "transaction_check_interval_ms": 1_000, "transaction_check_max": 1}
    async with served(tmp_path, **keys) as node:
        table = node.broker.state.table(HALVES)
        assert (await node.client.heartbeat("producer")).code == 0
        sent = await node.client.send(BODY, i=HALF, f="4")
        position = parse_offset_message_id(sent.ext["msgId"])[1]
        while (asked := await node.client.next_push()).code != RequestCode.CHECK_TRANSACTION_STATE:
            assert asked.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert asked.ext["commitLogOffset"] == str(position)
        assert decode_record(asked.body, verify_crc=True).body == BODY
        await until(lambda: position in table.ended)
        assert (table.ended[position], len(table.open)) == (HalfOutcome.UNDECIDED, 0)
        [(_, kept)] = await records_with_key(node.broker.machine, CHECK_MAX_TIME_TOPIC, b"K1")
        assert kept.body == BODY
        resume = {"msgId": offset_message_id(HostAddress("127.0.0.1", 1), kept.physical_offset), "topic": "T1"}
        assert (await node.client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)).code == 0
        [again] = table.open.values()
        await node.commit(again.position, again.queue_offset)
        assert (await node.pulled()).body == BODY


async def test_a_large_delayed_message_is_moved_before_a_trim(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        sent = await node.client.send(BODY, i="TIMER_DELAY_SEC\x0160\x02")
        position = parse_offset_message_id(sent.ext["msgId"])[1]
        moves, table = node.broker.service.parts[DueMessages].moves, node.broker.state.table(TIMERS)
        moves.request(position + 1, disk_full=False)
        await until(lambda: not table.below(position + 1).rows)
        assert (moves.moved, table.total.rows) == (1, 1)
        assert table.total.bytes > len(BODY)


async def test_a_large_message_is_popped_redelivered_and_acknowledged(tmp_path: Path) -> None:
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
