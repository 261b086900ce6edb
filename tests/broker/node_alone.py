"""Broker's state machine on a real node and a real disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from dledger import Node, NodeConfig
from dledger.environment import AsyncioEnvironment
from dledger_broker.features import FEATURES
from dledger_broker.kernel.machine import BrokerMachine, MachineConfig
from dledger_remoting.topics import TopicConfig
from tests.broker.telling import tell


class NodeAlone:
    """The only node of its group. Keywords are settings of the node."""

    def __init__(self, directory: Path, machine_config: MachineConfig, **keys: Any) -> None:
        timing = {"election_min_ms": 200, "election_max_ms": 300}
        config = NodeConfig("c", "g", "n0", directory, b"s" * 32, **timing, bootstrap=True, **keys)  # type: ignore[arg-type]
        self.directory = directory
        self.env = AsyncioEnvironment(asyncio.get_running_loop())
        self.machine = BrokerMachine(str(directory), env=self.env, features=FEATURES, config=machine_config)
        self.node = Node(config, self.machine)
        self.machine.attach(self.node)

    async def __aenter__(self) -> Self:
        ready = asyncio.Event()
        tell(self.machine.events, "new_leadership", lambda now: ready.set() if now.ready else None)
        await self.node.start()
        self.machine.start()
        async with asyncio.timeout(20):
            await ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.machine.close()
        await self.node.stop()
        self.env.close()

    async def proposed(self, propose: Callable[[Callable[[object], None]], None]) -> None:
        """Propose something, and wait until it is applied."""
        future = asyncio.get_running_loop().create_future()
        propose(future.set_result)
        async with asyncio.timeout(20):
            assert await future is None

    async def create(self, topic: str) -> None:
        await self.proposed(lambda done: self.machine.proposals.ensure_topic(TopicConfig(topic, 4, 4), done))
