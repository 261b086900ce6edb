"""A broker's state machine on a fake node, with the calls that many tests make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import cached_property
from typing import TypeVar

from dledger.environment import Environment
from dledger.store.disk import Disk
from dledger.testing.disk import SimDisk
from dledger_broker.features import FEATURES
from dledger_broker.features.accounts.judge import Accounts
from dledger_broker.features.accounts.requests import AccountRequests
from dledger_broker.features.accounts.sealing import KeyFile
from dledger_broker.features.accounts.signed_dates import SignedDates
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.kernel.machine import BrokerMachine, MachineConfig
from dledger_broker.kernel.parts import Feature
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.service import BrokerService
from dledger_broker.testing.databases import MemoryDatabases
from dledger_broker.testing.environment import START_MS, FakeEnvironment
from dledger_broker.testing.node import NODE_ID, FakeLog, FakeNode
from dledger_broker.testing.records import Message, SentMessages, stage_messages
from dledger_broker.views.reading import GetResult
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import decode_record
from dledger_remoting.topics import TopicConfig

SMALL = MachineConfig(node_id=NODE_ID, units_per_file=16, index_slots=64, index_entries=50, checkpoint_bytes=1 << 40)
"""Configuration with files so small that a few messages fill them. Checkpoints are written only when requested."""

OFFSET_FLUSH_MS = 200

STORE_HOST = HostAddress("10.0.0.1", 10911)
"""Store host of the records."""

T = TypeVar("T")


class BrokerInMemory:
    """A started broker. `restart` makes another broker from the same disk and log.

    With `lead=False` it applies the log as a follower does.
    """

    def __init__(
        self,
        disk: Disk | None = None,
        log: FakeLog | None = None,
        config: MachineConfig = SMALL,
        *,
        features: Sequence[Feature] = FEATURES,
        lead: bool = True,
    ) -> None:
        self.disk = disk or SimDisk()
        self.config = config
        self.features = features
        self.env = FakeEnvironment()
        self.machine = BrokerMachine(
            "", env=self.env, features=features, config=config, disk=self.disk, databases=MemoryDatabases()
        )
        self.node = FakeNode(self.machine, self.env, log)
        self.machine.attach(self.node)
        self.writer = LogWriter(self.machine, self.node, self.env, STORE_HOST)
        self.node.start(lead=lead)
        self.env.run_ready()

    @cached_property
    def reads(self) -> QueueReads:
        """Reader of queues, as pulls use it."""
        return QueueReads(self.machine)

    @cached_property
    def groups(self) -> GroupProposals:
        """The proposals about consumer groups."""
        return GroupProposals(self.machine)

    @cached_property
    def offsets(self) -> OffsetBuffer:
        """Buffer of consumer offsets to commit. They are proposed within `OFFSET_FLUSH_MS`."""
        commits = OffsetCommits(self.machine, self.env, OFFSET_FLUSH_MS)
        self.machine.events.add(commits)
        return commits.buffer

    @property
    def log(self) -> FakeLog:
        """The node's log."""
        return self.node.log

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run until an awaitable is done, and let time pass as it needs. Return its result."""
        return asyncio.run(self.env.finish(awaitable))

    def create_topic(self, name: str, queues: int = 4) -> None:
        """Create a topic and apply it."""
        self.machine.proposals.put_topic(TopicConfig(name, queues, queues), lambda _: None)
        self.env.run_ready()

    def delete_topic(self, name: str) -> None:
        """Delete a topic and apply it."""
        self.machine.proposals.delete_topic(name, lambda _: None)
        self.env.run_ready()

    def queue(self, topic: str, queue_id: int = 0) -> QueueState:
        """Return a queue that exists."""
        queue = self.machine.queue(topic, queue_id)
        if queue is None:
            raise LookupError(f"no queue {topic}/{queue_id}")
        return queue

    def send(self, topic: str, queue_id: int, *messages: Message, at_ms: int = START_MS) -> SentMessages:
        """Store messages as one unit, and apply it."""
        sent = stage_messages(self.node, self.queue(topic, queue_id), messages, at_ms)
        self.env.run_ready()
        return sent

    def flush_views(self) -> None:
        """Let time pass until the views' files have caught up."""
        self.env.advance(self.config.view_flush_ms / 1000)

    def checkpoint(self) -> None:
        """Make the views' files durable, and write a checkpoint."""
        done: list[bool] = []
        self.machine.checkpointer.request(lambda *, saved: done.append(saved))
        while not done:
            self.env.advance(0.1)

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """Return the bodies of all readable messages of a queue, in order, pulled a few at a time."""
        queue = self.queue(topic, queue_id)
        bodies: list[bytes] = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = self.reads.get_messages(queue, offset, 5, 1 << 20)
            if result.cold:
                result = self._read_later(queue, offset)
            if result.next_begin <= offset:
                raise LookupError(f"a pull at {offset} of {queue} leads to {result}")
            for position, size in result.runs:
                data = bytes(self.log.data[position : position + size])
                while data:
                    record = decode_record(data, verify_crc=True)
                    bodies.append(record.body)
                    data = data[int.from_bytes(data[:4], "big") :]
            offset = result.next_begin
        return bodies

    def _read_later(self, queue: QueueState, offset: int) -> GetResult:
        results: list[GetResult | BaseException] = []
        self.reads.get_messages_later(queue, offset, 5, 1 << 20, None, results.append)
        self.env.run_ready()
        result = results[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def restart(self, *, lead: bool = True) -> BrokerInMemory:
        """Return another broker made from this one's disk and log. This broker is not closed."""
        return BrokerInMemory(self.disk, self.log, self.config, features=self.features, lead=lead)


def guard(
    service: BrokerService, machine: BrokerMachine, keys: KeyFile, env: Environment, cluster: str = "DefaultCluster"
) -> None:
    """Have requests judged from now on, as on a node with these keys."""
    judge = Accounts(keys, cluster, SignedDates(env, service.live))
    machine.on_state(judge.keep_table)
    service.parts[AccountRequests].changes.keys = keys
    service.access.guard(judge)
