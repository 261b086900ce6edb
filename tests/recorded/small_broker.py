"""Broker in this process with small files, at a time that the test chooses.

Its log's segments have 64 KiB and begin with a snapshot each. Its views' files have a few units.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from dledger.config import NodeConfig
from dledger.environment import AsyncioEnvironment
from dledger.replica.snapshots.marks import Digest
from dledger.replica.writing.own_commands import OwnCommands
from dledger_broker import node as broker_module
from dledger_broker.features.sending.dedup.remembered import REMEMBERED
from dledger_broker.kernel.machine import MachineConfig
from dledger_broker.node import Broker
from dledger_remoting.command import RemotingCommand
from tests.broker.broker_in_process import Client, node_config
from tests.broker.telling import tell

SEGMENT_BYTES = 64 << 10
PATIENCE_S = 20
ALWAYS_HOURS = 24 * 365 * 100


class SmallBroker:
    """Broker with a client, and the digest of its state when it began to lead."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client: Client
        self.digest_at_first: int | None = None
        self._marked = 0
        tell(broker.group.events, "leader_changed", self._look)

    def _look(self) -> None:
        if self.broker.group.ready and self.digest_at_first is None:
            self.digest_at_first = self.broker.machine.digest()
            self._marked = self.broker.node.segments()[-1].start_position

    async def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> RemotingCommand:
        """Return the answer to a request that succeeds."""
        answer = await self.try_to(code, fields or {}, body)
        assert answer.code == 0, f"{code} {fields}: {answer.code} {answer.remark}"
        return answer

    async def try_to(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> RemotingCommand:
        """Return the answer to a request, also if it is an error."""
        return await self.client.call(code, {name: str(value) for name, value in fields.items()}, body)

    async def is_founded(self) -> None:
        """Wait until a new group has recorded its initial state."""
        state = self.broker.machine.state
        await until(
            lambda: (
                state.members.ordinal is not None and state.table(REMEMBERED).window_ms > 0 and "TBW102" in state.topics
            )
        )

    @property
    def applied_index(self) -> int:
        """Return the index of the last applied entry."""
        return self.broker.status().applied_index

    async def is_marked(self, last_before: int) -> None:
        """Wait for a snapshot and a digest, if an entry after `last_before` began a segment.

        Otherwise the entry with the digest would come between later entries at changing places.
        """
        node = self.broker.node
        newest = node.segments()[-1].start_position
        marked, self._marked = self._marked, newest
        if newest > marked:
            await until(lambda: newest in node.trim_candidates() and self.applied_index >= last_before + 2)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event reports. A worker makes each condition of the callers true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- see above
            await asyncio.sleep(0.005)


class Clock:
    """Wall clock of brokers in this process, in ms since 1970."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
        self.now_ms = now_ms
        monkeypatch.setattr(AsyncioEnvironment, "wall_ms", lambda _environment: self.now_ms)


def propose_digests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put each digest into the log once.

    A replica repeats its own digest until it is applied, so with a slow disk the log would have it twice.
    """
    propose = OwnCommands._propose_digest

    def once(self: OwnCommands, digest: Digest, data: bytes) -> None:
        proposed: set[bytes] = vars(self).setdefault("proposed_in_test", set())
        if data not in proposed:
            proposed.add(data)
            propose(self, digest, data)

    monkeypatch.setattr(OwnCommands, "_propose_digest", once)


def use_small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers of this process write small files."""
    propose_digests_once(monkeypatch)

    def small_log(**settings: object) -> NodeConfig:
        small = {"segment_bytes": SEGMENT_BYTES, "snapshot_interval_ms": 0}
        return NodeConfig(**settings | small)  # type: ignore[arg-type]

    monkeypatch.setattr(broker_module, "NodeConfig", small_log)
    small_views = partial(MachineConfig, units_per_file=64, index_slots=64, index_entries=64)
    monkeypatch.setattr(broker_module, "MachineConfig", small_views)


@asynccontextmanager
async def running(directory: Path, *, bootstrap: bool = False) -> AsyncIterator[SmallBroker]:
    """Run a broker that leads, without retention by age, and without topics that earlier builds did not create."""
    config = node_config(
        directory.parent,
        data_dir=str(directory),
        advertised_port=10911,
        offset_flush_ms=1,
        retention_hours=ALWAYS_HOURS,
        group_ordinal=3,
        trace_topic=False,
    )
    small = SmallBroker(Broker(config, bootstrap=bootstrap))
    await small.broker.start()
    try:
        await until(lambda: small.digest_at_first is not None)
        small.client = await Client.connect(small.broker.listener.port)
        yield small
        small.client.close()
    finally:
        await small.broker.stop()
