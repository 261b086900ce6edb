"""The state machine on a real node and a real disk: one voter, small segments."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from nothing_waits import NothingWaits

from dledger import Node, NodeConfig
from dledger.environment import AsyncioEnvironment
from dledger_broker.features import FEATURES
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.features.queries.by_key import KeyQueries
from dledger_broker.features.retention.job import Retention
from dledger_broker.features.retention.policy import RetentionPolicy
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine, MachineConfig
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.testing import Message, stage_messages
from dledger_broker.testing.broker import STORE_HOST
from dledger_remoting.record import decode_record
from dledger_remoting.topics import TopicConfig

SMALL = MachineConfig(
    node_id="n0",
    units_per_file=1000,
    index_slots=1000,
    index_entries=5000,
    view_flush_ms=20,
    checkpoint_bytes=1 << 17,
)


class OneNodeBroker:
    """A broker's state machine on the only node of its group."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        config = NodeConfig(
            "c",
            "g",
            "n0",
            directory,
            b"s" * 32,
            segment_bytes=1 << 18,
            election_min_ms=200,
            election_max_ms=300,
            snapshot_interval_ms=1,
            bootstrap=True,
        )
        self.env = AsyncioEnvironment(asyncio.get_running_loop())
        self.machine = BrokerMachine(str(directory), env=self.env, features=FEATURES, config=SMALL)
        self.offsets = OffsetCommits(self.machine, self.env, 1).buffer
        self.node = Node(config, self.machine)
        self.machine.attach(self.node)
        self.ready = asyncio.Event()
        self.machine.on_leadership_changed.append(lambda now: self.ready.set() if now.ready else None)

    async def __aenter__(self):
        await self.node.start()
        self.machine.start()
        async with asyncio.timeout(20):
            await self.ready.wait()
        return self

    async def __aexit__(self, *_):
        await self.machine.close()
        await self.node.stop()
        self.env.close()

    async def proposed(self, propose: Callable[[Callable[[object], None]], None]) -> None:
        future = asyncio.get_running_loop().create_future()
        propose(future.set_result)
        async with asyncio.timeout(20):
            assert await future is None

    async def create(self, topic: str) -> None:
        await self.proposed(lambda done: self.machine.proposals.ensure_topic(TopicConfig(topic, 4, 4), done))

    async def send(self, topic: str, start: int, count: int) -> None:
        for number in range(start, start + count, 10):
            queue = self.machine.queue(topic, number // 10 % 4)
            messages = [Message(b"%06d" % (number + place) + bytes(100), keys=f"k{number}") for place in range(10)]
            stage_messages(self.node, queue, messages, 1_700_000_000_000 + number)
            if number % 200 == 0:
                await self.settled()
        await self.settled()

    async def settled(self) -> None:
        """Everything that is staged is applied."""
        await self.proposed(lambda done: self.offsets.commit("g", "t", 0, 1, done))

    async def has_snapshot(self) -> None:
        """A snapshot that the log can be trimmed to is written; that takes as long as its sync does."""
        async with asyncio.timeout(20):
            while not self.node.trim_candidates():  # noqa: ASYNC110 - written on a thread, told nobody
                await asyncio.sleep(0.005)

    async def trimmed(self, policy: RetentionPolicy) -> int:
        """The first kept position once retention has looked and trimmed."""
        trimmed = asyncio.Event()
        self.node.on_trimmed(lambda position: trimmed.set())
        job = Retention(
            self.machine,
            self.node,
            self.env,
            ProposedPins(self.machine),
            NothingWaits(),
            lambda: policy,
            BrokerCounters(),
        )
        self.machine.jobs.open([job], self.node, LogWriter(self.machine, self.node, self.env, STORE_HOST))
        handle = self.machine.jobs.handle_of(job.name)
        assert handle is not None
        job.check(handle)
        async with asyncio.timeout(20):
            await trimmed.wait()
        return self.node.first_position

    async def contents(self) -> dict[tuple[str, int], list[bytes]]:
        found = {}
        for name, topic in self.machine.state.topics.items():
            for queue_id, queue in topic.queues.items():
                bodies = found.setdefault((name, queue_id), [])
                offset = queue.min_offset
                while offset < queue.max_offset:
                    future = asyncio.get_running_loop().create_future()
                    QueueReads(self.machine).get_messages_later(queue, offset, 100, 1 << 20, None, future.set_result)
                    result = await future
                    for position, size in result.runs:
                        data = await self.node.read(position, size)
                        while data:
                            bodies.append(decode_record(data, verify_crc=True).body[:6])
                            data = data[int.from_bytes(data[:4], "big") :]
                    assert result.next_begin > offset
                    offset = result.next_begin
        return found


@pytest.fixture
async def left_behind(tmp_path):
    """A directory with several segments, snapshots and a clean stop; what it showed, and its digest."""
    async with OneNodeBroker(tmp_path) as broker:
        await broker.create("orders")
        await broker.send("orders", 0, 4000)
        await broker.create("audits")
        await broker.send("audits", 0, 1000)
        contents, digest = await broker.contents(), broker.machine.digest()
        assert len(broker.node.segments()) > 2
        await broker.has_snapshot()
    assert sum(map(len, contents.values())) == 5000
    return tmp_path, contents, digest


@pytest.mark.parametrize(
    "loss", [(), ("views",), ("consumequeue",), ("keyindex",), ("consumequeue/orders/2", "keyindex")]
)
async def test_a_restart_brings_everything_back(left_behind, loss):
    directory, contents, digest = left_behind
    for name in loss:
        shutil.rmtree(directory / name)
    async with OneNodeBroker(directory) as broker:
        assert await broker.contents() == contents
        assert broker.machine.digest() == digest
        queries = KeyQueries(broker.machine.keys, broker.machine.lookup)
        result = await queries.query("orders", "k2010", 32, 0, 1 << 60, max_bytes=1 << 20)
        assert len(result.records) == 10
        await broker.send("orders", 4000, 100)
        assert sum(map(len, (await broker.contents()).values())) == 5100


async def test_a_trim_removes_the_oldest_and_nothing_is_numbered_twice(left_behind):
    directory, contents, _ = left_behind
    async with OneNodeBroker(directory) as broker:
        nexts = {
            (queue.topic, queue.queue_id): queue.next_offset for queue in broker.machine.state.topic_table.queues()
        }
        first_position = await broker.trimmed(RetentionPolicy(max_age_ms=1 << 60, max_log_bytes=1 << 19))
        assert first_position > 0
        kept = await broker.contents()
        assert all(contents[key][-len(bodies) :] == bodies for key, bodies in kept.items() if bodies)
        assert sum(map(len, kept.values())) < 5000
    shutil.rmtree(directory / "views")
    async with OneNodeBroker(directory) as broker:
        assert broker.node.first_position == first_position
        assert await broker.contents() == kept
        assert {
            (queue.topic, queue.queue_id): queue.next_offset for queue in broker.machine.state.topic_table.queues()
        } == nexts


async def test_old_messages_go_however_young_their_files_are(left_behind):
    """The files were written a moment ago, as those of a node that was replaced; the messages are years old."""
    directory, contents, _ = left_behind
    async with OneNodeBroker(directory) as broker:
        furthest = broker.node.trim_candidates()[-1]
        assert await broker.trimmed(RetentionPolicy()) == furthest
        await broker.send("orders", 4000, 10)
        kept = await broker.contents()
        assert kept["orders", 0][-10:] == [b"%06d" % number for number in range(4000, 4010)]
        assert sum(map(len, kept.values())) < sum(map(len, contents.values()))
