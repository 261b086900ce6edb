"""Group of three nodes in the test's own process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest_asyncio
from broker_in_process import Client, node_config

from dledger.store.disk import OsDisk
from dledger.store.identity import FORMAT, Identity, write_identity
from dledger.testing.ports import free_ports
from dledger.types import Membership, ReplicaId
from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.features.pins.table import PutPin
from dledger_broker.node import Broker
from tests.broker.telling import tell

NODE_IDS = ("broker-a-n0", "broker-a-n1", "broker-a-n2")


class BrokerGroup:
    """Three nodes in this process."""

    def __init__(self, tmp_path: Path, *, has_secret: bool = True, **keys: ConfigValue) -> None:
        ports = dict(zip(NODE_IDS, free_ports(3), strict=True))
        alias_ports = dict(zip(NODE_IDS, free_ports(3), strict=True))
        voters = tuple(ReplicaId(node_id, uuid.uuid4().hex) for node_id in NODE_IDS)
        secret = tmp_path / "secret"
        secret.write_bytes(b"s" * 32)
        secret.chmod(0o600)
        self.brokers: dict[str, Broker] = {}
        self._changed = asyncio.Event()
        for voter in voters:
            directory = tmp_path / voter.node_id
            directory.mkdir()
            config = node_config(
                tmp_path,
                node_id=voter.node_id,
                data_dir=str(directory),
                peer_port=ports[voter.node_id],
                alias_port=alias_ports[voter.node_id],
                **({"secret_file": str(secret)} if has_secret else {}),
                drain_ms=60_000,
                peers={other: {"address": f"127.0.0.1:{ports[other]}"} for other in NODE_IDS if other != voter.node_id},
                **keys,
            )
            group = (FORMAT, config.cluster, config.broker_group)
            own = (voter.node_id, voter.incarnation, config.segment_bytes)
            write_identity(OsDisk(str(directory)), Identity(*group, *own, Membership(voters)))
            broker = Broker(config)
            tell(broker.group.events, "leader_changed", self._announce)
            self.brokers[voter.node_id] = broker

    def _announce(self) -> None:
        self._changed.set()

    async def leader(self, *, other_than: Broker | None = None) -> Broker:
        """Return the node that leads, once the others know its address."""
        async with asyncio.timeout(30):
            while True:
                ready = [broker for broker in self.brokers.values() if broker.group.ready]
                if ready and ready[0] is not other_than:
                    known = [broker.group.leader_address for broker in self.brokers.values()]
                    if known.count(str(ready[0].config.advertised)) >= len(known) - (other_than is not None):
                        return ready[0]
                self._changed.clear()
                await self._changed.wait()

    async def understanding(self) -> Broker:
        """Return the leader, once it has recorded that every node understands every command."""
        leader = await self.leader()
        understood = asyncio.Event()

        def look() -> None:
            if leader.machine.understood_by_all(PutPin):
                understood.set()

        tell(leader.machine.events, "members_changed", look)
        look()
        async with asyncio.timeout(20):
            await understood.wait()
        return leader

    async def followers(self) -> list[Broker]:
        leader = await self.leader()
        return [broker for broker in self.brokers.values() if broker is not leader]


@asynccontextmanager
async def running(made: BrokerGroup) -> AsyncIterator[BrokerGroup]:
    """Run the nodes of a group, and stop them at the end."""
    await asyncio.gather(*(broker.start() for broker in made.brokers.values()))
    try:
        yield made
    finally:
        await asyncio.gather(*(broker.stop() for broker in made.brokers.values()))


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with running(BrokerGroup(tmp_path)) as made:
        yield made


async def client_of(broker: Broker) -> Client:
    return await Client.connect(broker.listener.port)
