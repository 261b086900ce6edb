"""The state machine on a real node and a real disk: one voter, small segments."""

import asyncio
import shutil
from pathlib import Path

import pytest
from broker_in_process import until
from node_alone import NodeAlone
from nothing_waits import NothingWaits

from dledger.environment import called_back
from dledger.store.disk import OsDisk
from dledger.store.verify import verify
from dledger_broker.features import FEATURES
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.features.queries.by_key import KeyQueries
from dledger_broker.features.retention.job import Retention
from dledger_broker.features.retention.policy import RetentionPolicy
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.first_offsets import HiddenMessages, find_hidden
from dledger_broker.kernel.machine import MachineConfig
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.testing import Message, stage_messages
from dledger_broker.testing.broker import STORE_HOST
from dledger_broker.views.reading import GetResult, ReadStatus
from dledger_remoting.record import decode_record

SMALL = MachineConfig(
    node_id="n0", units_per_file=1000, index_slots=1000, index_entries=5000, view_flush_ms=20, checkpoint_bytes=1 << 17
)


class OneNodeBroker(NodeAlone):
    """Broker's state machine on the only node of its group."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SMALL, segment_bytes=1 << 18, snapshot_interval_ms=1)
        commits = OffsetCommits(self.machine, self.env, 1)
        self.machine.events.add(commits)
        self.offsets = commits.buffer

    async def send(self, topic: str, start: int, count: int) -> None:
        for number in range(start, start + count, 10):
            queue = self.machine.queue(topic, number // 10 % 4)
            messages = [Message(b"%06d" % (number + place) + bytes(100), keys=f"k{number}") for place in range(10)]
            stage_messages(self.node, queue, messages, 1_700_000_000_000 + number)
            if number % 200 == 0:
                await self.settled()
        await self.settled()

    async def settled(self) -> None:
        """Wait until everything that is staged is applied."""
        await self.proposed(lambda done: self.offsets.commit("g", "t", 0, 1, done))

    async def has_snapshot(self) -> None:
        """Wait for a snapshot that the log can be trimmed to, which takes as long as its sync."""
        await until(self.node.trim_candidates)

    async def trimmed(self, policy: RetentionPolicy) -> int:
        """Let retention trim, and return the first kept position."""
        trimmed = asyncio.Event()
        self.node.on_trimmed(lambda position: trimmed.set())
        pins, counters = ProposedPins(self.machine), BrokerCounters()
        job = Retention(self.machine, self.node, self.env, pins, NothingWaits(), lambda: policy, counters)
        self.machine.jobs.open([job], self.node, LogWriter(self.machine, self.node, self.env, STORE_HOST))
        handle = self.machine.jobs.handle_of(job.name)
        assert handle is not None
        job.check(handle)
        async with asyncio.timeout(20):
            await trimmed.wait()
        return self.node.first_position

    async def read(self, queue: QueueState, offset: int) -> GetResult:
        reads = QueueReads(self.machine)
        return await called_back(lambda done: reads.get_messages_later(queue, offset, 100, 1 << 20, None, done))

    def next_offsets(self) -> dict[tuple[str, int], int]:
        queues = self.machine.state.topic_table.queues()
        return {(queue.topic, queue.queue_id): queue.next_offset for queue in queues}

    async def contents(self) -> dict[tuple[str, int], list[bytes]]:
        found = {}
        for name, topic in self.machine.state.topics.items():
            for queue_id, queue in topic.queues.items():
                bodies = found.setdefault((name, queue_id), [])
                offset = queue.min_offset
                while offset < queue.max_offset:
                    result = await self.read(queue, offset)
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
    """Return a directory with several segments, snapshots and a clean stop, with its contents and its digest."""
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


async def test_a_trim_removes_the_oldest_messages_and_next_offsets_survive_lost_views(left_behind):
    directory, contents, _ = left_behind
    async with OneNodeBroker(directory) as broker:
        nexts = broker.next_offsets()
        first_position = await broker.trimmed(RetentionPolicy(max_age_ms=1 << 60, max_log_bytes=1 << 19))
        assert first_position > 0
        kept = await broker.contents()
        assert all(contents[key][-len(bodies) :] == bodies for key, bodies in kept.items() if bodies)
        assert sum(map(len, kept.values())) < 5000
    shutil.rmtree(directory / "views")
    async with OneNodeBroker(directory) as broker:
        assert broker.node.first_position == first_position
        assert await broker.contents() == kept
        assert broker.next_offsets() == nexts


async def test_retention_removes_old_messages_in_young_files(left_behind):
    """A replaced node has new files with old messages."""
    directory, contents, _ = left_behind
    async with OneNodeBroker(directory) as broker:
        furthest = broker.node.trim_candidates()[-1]
        assert await broker.trimmed(RetentionPolicy()) == furthest
        await broker.send("orders", 4000, 10)
        kept = await broker.contents()
        assert kept["orders", 0][-10:] == [b"%06d" % number for number in range(4000, 4010)]
        assert sum(map(len, kept.values())) < sum(map(len, contents.values()))


async def test_the_offline_check_reports_messages_hidden_by_a_first_offset(left_behind):
    """An earlier version raised the first offset in this way because of one rotten unit, although no trim was due."""
    directory, _, _ = left_behind

    def hidden() -> list[HiddenMessages]:
        report = verify(str(directory))
        assert report.problems == []
        assert report.commit_index == report.last_index
        return find_hidden(report, FEATURES, OsDisk(str(directory)))

    async with OneNodeBroker(directory) as broker:
        await broker.trimmed(RetentionPolicy(max_age_ms=1 << 60, max_log_bytes=1 << 19))
        queue = broker.machine.queue("orders", 1)
        first = queue.first_offset
        assert 0 < first < queue.next_offset - 10
        await broker.settled()
    assert await asyncio.to_thread(hidden) == []
    async with OneNodeBroker(directory) as broker:
        topic = broker.machine.state.topics["orders"]
        raised = TrimQueues(broker.machine.state.trims.before, (("orders", topic.created_position, 1, first + 7),))
        await broker.proposed(lambda done: broker.machine.stage_command(raised, done))
        await broker.settled()
    assert await asyncio.to_thread(hidden) == [HiddenMessages("orders", 1, first, first + 7)]


@pytest.mark.parametrize("loss", ["flipped", "lost"])
async def test_queues_are_mended_while_their_node_runs(left_behind, loss):
    directory, contents, _ = left_behind
    async with OneNodeBroker(directory) as broker:
        assert await broker.contents() == contents
        (file,) = sorted((directory / "consumequeue/orders/2").iterdir())[:1]
        if loss == "lost":
            file.unlink()
            view = broker.machine.queue("orders", 2).view
            await broker.machine.mender._scrub_view(view)
        else:
            data = bytearray(file.read_bytes())
            data[20 * 17 + 16] ^= 1  # a bit of the tag code
            file.write_bytes(data)
            assert (await broker.read(broker.machine.queue("orders", 2), 0)).status is ReadStatus.NOT_REBUILT
        async with asyncio.timeout(20):
            assert await broker.machine.queues.wait_for_mending(broker.machine.queue("orders", 2).view)
        assert broker.machine.mender.mended == 1
        assert await broker.contents() == contents
