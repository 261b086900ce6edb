"""Broker whose clients pop, and their requests."""

import asyncio
from base64 import b64encode
from typing import Self

import msgspec
from served_broker import FakeClient, ServedBroker, pull_ext, records

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.features.pop.deliveries import PopQueue
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pop.revival import Revivals
from dledger_broker.features.pop.table import POPPED, PopTable
from dledger_remoting.command import RemotingCommand
from dledger_remoting.pop import CheckPoint, Retry, parse_check_point, pop_retry_topic
from dledger_remoting.properties import FAILURE_REASON, POP_CHECK_POINT, parse_properties
from dledger_remoting.record import MessageRecord, iter_records

POP, ACK, CHANGE, BATCH_ACK = 200050, 200051, 200053, 200151
FOUND, NO_MESSAGE, NOTHING = 0, 208, 210
HIDDEN_S = 60.0
QUEUE_0 = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}


class Popped(msgspec.Struct, frozen=True):
    """Message as a consumer gets it, with the check point that its acknowledgement names."""

    body: bytes
    topic: str
    real_topic: str
    reconsume_times: int
    point: CheckPoint
    reason: str | None = None
    """Why its last delivery failed."""


class Popper(FakeClient):
    """Client that pops as group CG, by default from topic T1."""

    @classmethod
    def of(cls, broker: ServedBroker) -> Self:
        """Return a client of a broker, which gets the group and the job that delivers messages again."""
        return cls(with_revivals(broker.put_group()))

    def store(self, *bodies: bytes, topic: str = "T1", queue_id: int = 0) -> None:
        """Store messages in one queue."""
        for body in bodies:
            assert self.send_message(topic, body, queue_id).code == 0

    def store_and_pop(self, count: int) -> list[Popped]:
        """Store messages whose bodies are numbers, and pop them all."""
        self.store(*numbers(count))
        return self.pop()

    def wait(self, seconds: float = HIDDEN_S + 1) -> None:
        """Let time pass, by default until popped messages come again, and finish the reads from the disk meanwhile."""
        wait(self.broker, seconds)

    def pop(self, topic: str = "T1", **fields: str) -> list[Popped]:
        """Pop, and return the messages; none for an answer 210."""
        return pop(self, topic, **fields)

    def pop_bodies(self, topic: str = "T1", **fields: str) -> list[bytes]:
        return bodies(self.pop(topic, **fields))

    def ask_pop(self, topic: str = "T1", **fields: str) -> RemotingCommand:
        """Pop, and return the answer."""
        return ask(self, POP, pop_ext(topic, **fields))

    def begin_pop(self, topic: str = "T1", **fields: str) -> int:
        """Send a pop that waits for messages for up to 15 s, and return its opaque."""
        opaque = self.send(POP, pop_ext(topic, **{"pollTime": "15000", **fields}))
        self.broker.settle()
        return opaque

    def popped(self, opaque: int, topic: str = "T1") -> list[bytes]:
        """Return the bodies in the answer to a pop."""
        return bodies(messages(self.answered(opaque), topic))

    def ack(self, message: Popped, group: str = "CG") -> int:
        """Acknowledge a message, and return the code of the answer."""
        return self.call(ACK, ack_ext(message, group)).code

    def begin_ack(self, message: Popped) -> int:
        """Send an acknowledgement, and return its opaque."""
        return self.send(ACK, ack_ext(message))

    def begin_hide(self, message: Popped, seconds: float, **fields: str) -> int:
        """Ask to change how long a message is hidden, and return the request's opaque."""
        return self.send(CHANGE, {**ack_ext(message), "invisibleTime": str(int(seconds * 1000)), **fields})

    def hide(self, message: Popped, seconds: float, **fields: str) -> tuple[int, Popped]:
        """Change how long a message is hidden, and return the code, and the message with its next check point."""
        opaque = self.begin_hide(message, seconds, **fields)
        self.broker.settle()
        answer = self.answered(opaque)
        if answer.code != FOUND:
            return answer.code, message
        point = msgspec.structs.replace(
            message.point,
            start_offset=message.point.queue_offset,
            pop_time_ms=int(answer.ext["popTime"]),
            invisible_ms=int(answer.ext["invisibleTime"]),
        )
        return answer.code, msgspec.structs.replace(message, point=point)

    def batch_ack(self, *popped: Popped) -> int:
        """Acknowledge messages of one delivery, and return the code."""
        first = popped[0].point
        bits = sum(1 << message.point.queue_offset - first.start_offset for message in popped)
        place = {"c": "CG", "t": "T1", "r": str(first.retry), "so": first.start_offset, "q": first.queue_id, "rq": 0}
        when = {"pt": first.pop_time_ms, "it": first.invisible_ms}
        row = {**place, **when, "b": b64encode(bits.to_bytes(8, "little")).decode()}
        return self.call(BATCH_ACK, body=msgspec.json.encode({"brokerName": "broker-a", "acks": [row]})).code

    def dead_letters(self) -> list[MessageRecord]:
        """Return the dead letters of CG."""
        return records(ask(self, 11, pull_ext("%DLQ%CG")))

    @property
    def table(self) -> PopTable:
        """The popped queues in the applied state."""
        return self.broker.table(POPPED)

    def queue(self, queue_id: int = 0) -> PopQueue:
        """Return a popped queue of T1."""
        queue = self.table.queue(PopQueueKey("CG", "T1", queue_id))
        assert queue is not None
        return queue

    def committed(self, topic: str = "T1") -> int | None:
        """Return the offset that CG has committed in queue 0."""
        return self.broker.table(OFFSETS).get("CG", topic, 0)


def numbers(count: int, first: int = 0) -> list[bytes]:
    """Return bodies that are numbers."""
    return [b"%d" % number for number in range(first, first + count)]


def bodies(popped: list[Popped]) -> list[bytes]:
    return [message.body for message in popped]


def with_group(broker: ServedBroker, name: str = "CG", **settings: int) -> ServedBroker:
    """Make a group."""
    return broker.put_group(name, **settings)


def with_revivals(broker: ServedBroker) -> ServedBroker:
    """Run the job that delivers unacknowledged messages again."""
    jobs = broker.service.parts[PopRequests].jobs
    broker.memory.machine.jobs.open(jobs, broker.memory.node, broker.service.writer)
    return broker


def revivals_of(broker: ServedBroker) -> Revivals:
    """Return the job that delivers unacknowledged messages again."""
    (job,) = broker.service.parts[PopRequests].jobs
    assert isinstance(job, Revivals)
    return job


def wait(broker: ServedBroker, seconds: float) -> None:
    """Let time pass, and finish the reads from the disk that come meanwhile."""

    async def scenario() -> None:
        for _ in range(round(seconds * 10)):
            broker.advance(0.1)
            await _finish_reads(broker)

    asyncio.run(scenario())


def lead_anew(broker: ServedBroker) -> None:
    """Depose the node and have it lead in the next term, and finish the reads from the disk that come meanwhile."""

    async def scenario() -> None:
        broker.lead_anew()
        broker.group.on_leadership(broker.memory.machine.leadership)
        await _finish_reads(broker)

    asyncio.run(scenario())


async def _finish_reads(broker: ServedBroker) -> None:
    while True:
        await asyncio.sleep(0)
        broker.settle()
        if len(asyncio.all_tasks()) == 1:
            return


def ask(client: FakeClient, code: int, ext: dict[str, str]) -> RemotingCommand:
    """Send a request that may have to read from the disk, and return its answer."""

    async def scenario() -> int:
        opaque = client.send(code, ext)
        client.broker.settle()
        await _finish_reads(client.broker)
        return opaque

    return client.answered(asyncio.run(scenario()))


def pop_ext(topic: str = "T1", **fields: str) -> dict[str, str]:
    """Return the ext fields of a pop."""
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
    """Pop, and return the messages; none for an answer 210."""
    answer = ask(client, POP, pop_ext(topic, **fields))
    assert answer.code in (FOUND, NOTHING), (answer.code, answer.remark)
    return messages(answer, topic, fields.get("consumerGroup", "CG"))


def messages(answer: RemotingCommand, topic: str = "T1", group: str = "CG") -> list[Popped]:
    """Return the messages of an answer, with their check points as RocketMQ's client makes them."""
    starts = dict(_info(answer.ext.get("startOffsetInfo", "")))
    found: list[Popped] = []
    for record in iter_records(answer.body, verify_crc=True):
        properties = parse_properties(record.properties)
        text = properties.get(POP_CHECK_POINT)
        if text is None:
            start = starts["0", str(record.queue_id)]
            times = f"{answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']}"
            text = f"{start} {times} 0 broker-a {record.queue_id} {record.queue_offset}"
        point = parse_check_point(text)
        real = pop_retry_topic(group, topic, point.retry)
        found.append(
            Popped(record.body, record.topic, real, record.reconsume_times, point, properties.get(FAILURE_REASON))
        )
    return found


def _info(text: str) -> list[tuple[tuple[str, str], str]]:
    rows = [row.split(" ") for row in text.split(";") if row]
    return [((retry, queue_id), value) for retry, queue_id, value in rows]


def ack_ext(message: Popped, group: str = "CG") -> dict[str, str]:
    """Return the ext fields of an acknowledgement."""
    return {
        "consumerGroup": group,
        "topic": message.real_topic,
        "queueId": str(message.point.queue_id),
        "extraInfo": message.point.text,
        "offset": str(message.point.queue_offset),
    }


def retry_of(topic: str = "T1") -> str:
    return pop_retry_topic("CG", topic, Retry.V1)
