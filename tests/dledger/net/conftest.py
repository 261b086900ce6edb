"""Nodes on loopback whose receivers record all calls, on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from dledger.core.messages import CODEC, Message
from dledger.net.links import Links
from dledger.net.settings import Address, LinkLimits
from dledger.testing.ports import free_ports
from dledger.types import ReplicaId

SECRET = b"a secret of the whole group"
DEADLINE_S = 20.0
"""Time limit of a test, far above the time that any test needs."""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on both event loops: brokers use uvloop, and the log alone needs only asyncio."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Node:
    """Links of a node, and all calls of their receiver in order."""

    def __init__(self, node_id: str, incarnation: str = "first") -> None:
        self.me = ReplicaId(node_id, incarnation)
        self.messages: list[tuple[ReplicaId, Message, bytes]] = []
        self.data: list[tuple[ReplicaId, int, bytes]] = []
        self.events: list[tuple[str, ReplicaId]] = []
        self.connected: set[ReplicaId] = set()
        self.dial_errors: list[Exception] = []
        self.links: Links
        self._changed = asyncio.Event()

    async def start(self, peers: dict[str, Address], bind: Address = ("127.0.0.1", 0), **options: object) -> None:
        settings: dict[str, object] = {
            "cluster": "test", "group": "a", "segment_bytes": 1 << 20, "secret": SECRET, "limits": LinkLimits(),
            "codec": CODEC,
        }  # fmt: skip
        self.links = Links(self.me, bind=bind, peers=peers, receiver=self, **{**settings, **options})
        self.links.on_dial_failed = self._record_dial_failure(self.links.on_dial_failed)
        await self.links.start()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a callback makes a condition true."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_connected(self, *node_ids: str) -> None:
        await self.until(lambda: set(node_ids) <= {peer.node_id for peer in self.connected})

    def _record_dial_failure(self, report: Callable[..., None]) -> Callable[..., None]:
        def record(node_id: str, address: Address, error: Exception) -> None:
            report(node_id, address, error)
            self.dial_errors.append(error)
            self._changed.set()

        return record

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        self.messages.append((sender, message, payload))
        self._changed.set()

    def on_data(self, sender: ReplicaId, channel: int, data: bytes) -> None:
        self.data.append((sender, channel, data))
        self._changed.set()

    def on_connected(self, peer: ReplicaId) -> None:
        self.events.append(("connected", peer))
        self.connected.add(peer)
        self._changed.set()

    def on_disconnected(self, peer: ReplicaId) -> None:
        self.events.append(("disconnected", peer))
        self.connected.discard(peer)
        self._changed.set()


class Group:
    """Nodes that a test starts. All are stopped at its end."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    async def start(self, node_id: str, peers: dict[str, Address] | None = None, **options: object) -> Node:
        incarnation = str(options.pop("incarnation", "first"))
        node = Node(node_id, incarnation)
        await node.start(peers or {}, **options)
        self.nodes.append(node)
        return node

    @staticmethod
    def free_address() -> Address:
        """Return an address on which a node can listen, for tests that pass the address on before the start."""
        return "127.0.0.1", free_ports(1)[0]

    async def pair(self, of_a: dict[str, object] | None = None, of_b: dict[str, object] | None = None, **options):
        """Start nodes a and b, linked in both directions, with options of both and of each."""
        address = self.free_address()
        a = await self.start("a", {"b": address}, **options, **(of_a or {}))
        b = await self.start("b", {"a": a.links.address}, bind=address, **options, **(of_b or {}))
        await self.linked(a, b)
        return a, b

    @staticmethod
    async def linked(a: Node, b: Node) -> None:
        """Wait until nodes a and b are linked in both directions."""
        await a.until_connected("b")
        await b.until_connected("a")


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    group = Group()
    yield group
    for node in group.nodes:
        await node.links.stop()
