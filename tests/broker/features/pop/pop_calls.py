"""A broker whose clients pop, and their requests."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import msgspec
from served_broker import FakeClient, ServedBroker

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.features.pop.deliveries import PopQueue
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pop.table import POPPED, PopTable
from dledger_remoting.command import RemotingCommand
from dledger_remoting.pop import CheckPoint, Retry, parse_check_point, pop_retry_topic
from dledger_remoting.properties import POP_CHECK_POINT, parse_properties
from dledger_remoting.record import iter_records
from dledger_remoting.topics import SubscriptionGroupConfig

POP, ACK, PEEK, CHANGE, NOTIFY, POLLING, BATCH_ACK = 200050, 200051, 200052, 200053, 200054, 200055, 200151
FOUND, NO_MESSAGE, FULL, NOTHING = 0, 208, 209, 210
HIDDEN_S = 60.0


class Popped(msgspec.Struct, frozen=True):
    """One message as a consumer gets it, with what its acknowledgement says."""

    body: bytes
    topic: str
    real_topic: str
    reconsume_times: int
    point: CheckPoint


def with_group(broker: ServedBroker, name: str = "CG", **settings: int) -> ServedBroker:
    """Have a group exist."""
    broker.groups.put_group(SubscriptionGroupConfig(name, **settings), lambda _: None)  # type: ignore[arg-type]
    broker.settle()
    return broker


def with_revivals(broker: ServedBroker) -> ServedBroker:
    """Have the job run that delivers again what nobody acknowledges."""
    jobs = broker.service.parts[PopRequests].jobs
    broker.memory.machine.jobs.open(jobs, broker.memory.node, broker.service.writer)
    return broker


def wait(broker: ServedBroker, seconds: float) -> None:
    """Let time pass, and what is read from the disk meanwhile be read."""

    async def scenario() -> None:
        for _ in range(round(seconds * 10)):
            broker.advance(0.1)
            await _finish_reads(broker)

    asyncio.run(scenario())


async def _finish_reads(broker: ServedBroker) -> None:
    while True:
        await asyncio.sleep(0)
        broker.settle()
        if len(asyncio.all_tasks()) == 1:
            return


def ask(client: FakeClient, code: int, ext: dict[str, str]) -> RemotingCommand:
    """A request that may have to read from the disk, and its answer."""

    async def scenario() -> int:
        opaque = client.send(code, ext)
        client.broker.settle()
        await _finish_reads(client.broker)
        return opaque

    return client.answered(asyncio.run(scenario()))


def pop_ext(topic: str = "T1", **fields: str) -> dict[str, str]:
    """The ext fields of a pop."""
    return {
        "consumerGroup": "CG",
        "topic": topic,
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": str(int(HIDDEN_S * 1000)),
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "order": "false",
        **fields,
    }


def pop(client: FakeClient, topic: str = "T1", **fields: str) -> list[Popped]:
    """Pop; returns the messages, none for an answer 210."""
    answer = ask(client, POP, pop_ext(topic, **fields))
    assert answer.code in (FOUND, NOTHING), (answer.code, answer.remark)
    return messages(answer, topic, fields.get("consumerGroup", "CG"))


def messages(answer: RemotingCommand, topic: str = "T1", group: str = "CG") -> list[Popped]:
    """The messages of an answer, with their check points as RocketMQ's client makes them."""
    starts = dict(_info(answer.ext.get("startOffsetInfo", "")))
    found: list[Popped] = []
    for record in iter_records(answer.body, verify_crc=True):
        text = parse_properties(record.properties).get(POP_CHECK_POINT)
        if text is None:
            start = starts["0", str(record.queue_id)]
            text = " ".join(
                (
                    *(start, answer.ext["popTime"], answer.ext["invisibleTime"], answer.ext["reviveQid"]),
                    *("0", "broker-a", str(record.queue_id), str(record.queue_offset)),
                )
            )
        point = parse_check_point(text)
        real = pop_retry_topic(group, topic, point.retry)
        found.append(Popped(record.body, record.topic, real, record.reconsume_times, point))
    return found


def _info(text: str) -> list[tuple[tuple[str, str], str]]:
    rows = [row.split(" ") for row in text.split(";") if row]
    return [((retry, queue_id), value) for retry, queue_id, value in rows]


def ack_ext(message: Popped, group: str = "CG") -> dict[str, str]:
    """The ext fields of an acknowledgement."""
    return {
        "consumerGroup": group,
        "topic": message.real_topic,
        "queueId": str(message.point.queue_id),
        "extraInfo": message.point.text,
        "offset": str(message.point.queue_offset),
    }


def ack(client: FakeClient, message: Popped) -> int:
    """Acknowledge a message; returns the code of the answer."""
    return client.call(ACK, ack_ext(message)).code


def hide(client: FakeClient, message: Popped, seconds: float) -> tuple[int, Popped]:
    """Change how long a message is hidden; returns the code, and the message with its next check point."""
    answer = client.call(CHANGE, {**ack_ext(message), "invisibleTime": str(int(seconds * 1000))})
    if answer.code != FOUND:
        return answer.code, message
    ext = answer.ext
    point = msgspec.structs.replace(
        message.point,
        start_offset=message.point.queue_offset,
        pop_time_ms=int(ext["popTime"]),
        invisible_ms=int(ext["invisibleTime"]),
    )
    return answer.code, msgspec.structs.replace(message, point=point)


def batch_ack(client: FakeClient, *popped: Popped) -> int:
    """Acknowledge messages of one delivery; returns the code."""
    first = popped[0].point
    bits = sum(1 << message.point.queue_offset - first.start_offset for message in popped)
    row = {
        "c": "CG",
        "t": "T1",
        "r": str(first.retry),
        "so": first.start_offset,
        "q": first.queue_id,
        "rq": 0,
        "pt": first.pop_time_ms,
        "it": first.invisible_ms,
        "b": b64encode(bits.to_bytes(8, "little")).decode(),
    }
    body = msgspec.json.encode({"brokerName": "broker-a", "acks": [row]})
    return client.call(BATCH_ACK, body=body).code


def table_of(broker: ServedBroker) -> PopTable:
    return broker.memory.machine.state.table(POPPED)


def queue_of(broker: ServedBroker, topic: str = "T1", queue_id: int = 0) -> PopQueue:
    """A popped queue."""
    queue = table_of(broker).queue(PopQueueKey("CG", topic, queue_id))
    assert queue is not None
    return queue


def committed(broker: ServedBroker, topic: str = "T1", queue_id: int = 0) -> int | None:
    return broker.memory.machine.state.table(OFFSETS).get("CG", topic, queue_id)


def retry_of(topic: str = "T1", retry: Retry = Retry.V1) -> str:
    return pop_retry_topic("CG", topic, retry)
