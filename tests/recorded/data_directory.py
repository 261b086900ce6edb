"""Data directory of a broker with every kind of data, and its whole content as text.

The text leaves out values that differ between runs: the ports of clients, and the names of incarnations.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.retention.job import Retention
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.command import RemotingCommand
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.recorded.golden_files import bytes_text
from tests.recorded.small_broker import Clock, SmallBroker, running, until

START_MS = 1_700_000_000_000
SECOND_MS = 1_000
BODY_BYTES = 2_500
MESSAGES = 90
"""Number of messages. About 24 of them fill a segment."""
KEPT = 30
"""Number of a message that stays after the trim. Repetitions begin with it."""


async def write(directory: Path, killed: Path, clock: Clock) -> None:
    """Fill an empty directory and stop cleanly. `killed` gets the state that a kill before the stop would leave."""
    clock.now_ms = START_MS
    async with running(directory, bootstrap=True) as small:
        await small.is_founded()
        await _make_topics_and_groups(small)
        await _send_all(small, clock)
        await _commit_and_delete(small)
        await _trim(small, directory)
        await _pin(small)
        await _send(small, clock, "orders", MESSAGES)
        copy_running(directory, killed)


def copy_running(directory: Path, target: Path) -> None:
    """Copy the state that a kill would leave now. Workers may remove files meanwhile."""

    def copy(source: str, copied: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copyfile(source, copied)

    shutil.copytree(directory, target, ignore=shutil.ignore_patterns(".deleted-*"), copy_function=copy)


async def _make_topics_and_groups(small: SmallBroker) -> None:
    for topic, queues, attributes in (("orders", 2, ""), ("audit", 1, "+idempotent=true"), ("gone", 1, "")):
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
        }
        await small.ask(17, fields | {"topicFilterType": "SINGLE_TAG", "attributes": attributes})
    for group in ("billing", "shipping", "given-up"):
        await _make_group(small, group)


async def _make_group(small: SmallBroker, name: str) -> None:
    """Create a group without its retry topic, as earlier builds did on request (200)."""
    made: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    config = SubscriptionGroupConfig(name, retry_max_times=3)
    small.broker.service.parts[GroupRequests].proposals.put_group(config, made.set_result)
    assert await made is None


async def _send_all(small: SmallBroker, clock: Clock) -> None:
    """Send messages and batches, remembered ones and others, over several segments that begin with a snapshot."""
    for number in range(MESSAGES):
        await _send(small, clock, "orders", number)
        if number % 10 == 0:
            await send_remembered(small, number)
            await _send(small, clock, "gone", number)
        if number % 30 == 0:
            await _store(small, 320, _send_fields("orders", 1, f"batch{number}") | {"m": "true"}, _batch(number))


async def _send(small: SmallBroker, clock: Clock, topic: str, number: int) -> None:
    clock.now_ms += SECOND_MS
    body = b"%06d " % number * (BODY_BYTES // 7)
    queue_id = number % 2 if topic == "orders" else 0
    await _store(small, 310, _send_fields(topic, queue_id, f"{topic}{number}", f"k{number % 7} all"), body)


async def _store(small: SmallBroker, code: int, fields: dict[str, object], body: bytes) -> RemotingCommand:
    before = small.applied_index
    answer = await small.ask(code, fields, body)
    await small.is_marked(before)
    return answer


async def send_remembered(small: SmallBroker, number: int) -> str:
    """Send a message that the log remembers, or repeat it. Return its message id, queue id and queue offset."""
    fields = _send_fields("audit", 0, f"7F000001{number:024X}")
    answer = await _store(small, 310, fields, b"remembered %d" % number)
    return f"{answer.ext['msgId']} {answer.ext['queueId']} {answer.ext['queueOffset']}"


def _send_fields(topic: str, queue_id: int, unique_key: str, keys: str = "") -> dict[str, object]:
    properties = {"UNIQ_KEY": unique_key, "TAGS": "red", "KEYS": keys, "colour": "dark red"}
    joined = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": START_MS - 5, "h": 3}
    return fields | {"i": joined}


def _batch(number: int) -> bytes:
    properties = [f"UNIQ_KEY\x01batch{number}.{place}\x02KEYS\x01together\x02".encode() for place in range(3)]
    return encode_batch([BatchMessage(place, b"in a batch", each) for place, each in enumerate(properties)])


async def _commit_and_delete(small: SmallBroker) -> None:
    for group, queue_id, offset in (("billing", 0, 40), ("billing", 1, 3), ("shipping", 1, 0), ("given-up", 0, 7)):
        fields = {"consumerGroup": group, "topic": "orders", "queueId": queue_id, "commitOffset": offset}
        await small.ask(15, fields)
    await small.ask(215, {"topic": "gone"})
    await small.ask(207, {"groupName": "given-up"})


async def _trim(small: SmallBroker, directory: Path) -> None:
    """Trim the log as retention does, and wait until a worker has removed the files below its new start.

    Without the wait, a copy of the directory would contain some of these files.
    """
    node, retention = small.broker.node, small.broker.service.parts[Retention]
    run = small.broker.machine.jobs.handle_of(retention.name)
    assert run is not None
    position = node.trim_candidates()[0]
    trimmed: list[int] = []
    node.on_trimmed(trimmed.append)
    retention.trimming.trim(run, position)
    await until(lambda: bool(trimmed) and not retention.trimming.is_busy)
    await until(lambda: not any(_files_below(directory, position)))


def _files_below(directory: Path, position: int) -> Iterator[Path]:
    """Yield segments, index files and snapshots that begin before a position of the log."""
    for folder in ("commitlog", "index", "snapshots"):
        yield from (each for each in (directory / folder).iterdir() if each.name < f"{position:020d}")


async def _pin(small: SmallBroker) -> None:
    for name, lease_ms in (("reader", 3_600_000), ("brief", 1)):
        await small.ask(20013, {"name": name, "position": small.broker.node.first_position, "leaseMillis": lease_ms})


class Contents:
    """Reader that asks a broker for everything that it holds."""

    def __init__(self, small: SmallBroker) -> None:
        self._small = small
        self._ask = small.ask

    async def lines(self) -> list[str]:
        """Return a line for each item, in an order that does not depend on the broker."""
        topics = (await self._json(21))["topicConfigTable"]
        groups = (await self._json(201))["subscriptionGroupTable"]
        found = [f"digest when it began to lead: {self._small.digest_at_first:016x}"]
        found += [f"topic {_json_text(topics[name])}" for name in sorted(topics)]
        found += [f"group {_json_text(groups[name])}" for name in sorted(groups)]
        found += [f"pin {_json_text(row)}" for row in (await self._json(20015))["pins"]]
        for name in sorted(topics):  # topics that exist from the start are empty
            for queue_id in range(topics[name]["writeQueueNums"]):
                found += [line async for line in self._queue(name, queue_id, sorted(groups))]
        for key in ("all", "k3", "together", "batch30.1", "orders7", "nothing"):
            found.append(f"orders with key {key}: {await self._with_key('orders', key)}")
        found += [f"repeated: {await send_remembered(self._small, number)}" for number in range(KEPT, MESSAGES, 10)]
        return found

    async def _json(self, code: int) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode((await self._ask(code)).body)
        return decoded

    async def _queue(self, topic: str, queue_id: int, groups: list[str]) -> AsyncIterator[str]:
        where: dict[str, object] = {"topic": topic, "queueId": queue_id}
        first, end = [int((await self._ask(code, where)).ext["offset"]) for code in (31, 30)]
        if end == 0:
            return
        yield f"{topic}/{queue_id}: {first}..{end}, earliest {(await self._ask(32, where)).ext['timestamp']}"
        for group in groups:
            answer = await self._small.try_to(14, where | {"consumerGroup": group})
            if answer.code == 0:
                yield f"    {group} has consumed up to {answer.ext['offset']}"
        times = []
        async for record in self._records(topic, queue_id, first, end):
            times.append(record.store_timestamp)
            yield f"    {_record_text(record)}"
        for at in sorted({time + step for time in (*times[:1], *times[-1:]) for step in (-1, 0, 1)}):
            yield f"    offset at {at}: {(await self._ask(29, where | {'timestamp': at})).ext['offset']}"

    async def _records(self, topic: str, queue_id: int, offset: int, end: int) -> AsyncIterator[MessageRecord]:
        fields = {"consumerGroup": "reader", "topic": topic, "queueId": queue_id, "maxMsgNums": 32, "sysFlag": 4}
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
        while offset < end:
            answer = await self._ask(11, fields | {"queueOffset": offset})
            for record in iter_records(answer.body, verify_crc=True):
                assert (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, offset)
                offset += 1
                yield record

    async def _with_key(self, topic: str, key: str) -> str:
        """Return the positions of a topic's messages with a key. Check that each is found at its position too."""
        fields = {"topic": topic, "key": key, "beginTimestamp": 0, "endTimestamp": 2**62, "maxNum": 64}
        answer = await self._small.try_to(12, fields)
        found = [record.physical_offset for record in iter_records(answer.body)] if answer.code == 0 else []
        for position in found[:3]:
            (record,) = iter_records((await self._ask(33, {"offset": position})).body, verify_crc=True)
            assert (record.topic, record.physical_offset) == (topic, position)
        return " ".join(map(str, found)) or f"code {answer.code}"


def _record_text(record: MessageRecord) -> str:
    where = f"{record.queue_offset} at {record.physical_offset}, stored {record.store_timestamp} on {record.store_host}"
    flags = f"{record.flag} {record.sys_flag} {record.reconsume_times} {record.prepared_transaction_offset}"
    properties = record.properties.decode().replace("\x01", "=").replace("\x02", ";")
    return f"{where}, born {record.born_timestamp}, {flags}, {properties}: {bytes_text(record.body)}"


def _json_text(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
