"""A cut blocks exactly the direction that it names, also on open connections, and healing restores it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from dledger_chaos.errors import TargetError
from dledger_chaos.ports import find_base_port, proxy_ports
from dledger_chaos.toxiproxy.mesh import HOLD, NAMESRV, Direction, Link, Mesh, Toxic
from dledger_chaos.toxiproxy.server import ToxiproxyServer

pytestmark = pytest.mark.long

PATIENCE_S = 10.0
SWALLOW = Toxic("timeout", {"timeout": 0})


@dataclass(eq=False)
class Conversation:
    """Both ends of a connection from one node to another, through their link."""

    dialler: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    dialled: tuple[asyncio.StreamReader, asyncio.StreamWriter]

    async def say(self, text: bytes, *, back: bool = False) -> None:
        """Send from the dialler, or back to it."""
        writer = (self.dialled if back else self.dialler)[1]
        writer.write(text)
        await writer.drain()

    async def hear(self, size: int, *, back: bool = False) -> bytes:
        """Return the bytes that arrive at the other end, less than `size` if the connection ended."""
        reader = (self.dialler if back else self.dialled)[0]
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            return error.partial
        except ConnectionError:
            return b""


@dataclass
class Town:
    """Nodes a, b and c, each of which listens, and the mesh between them."""

    mesh: Mesh
    arrivals: dict[str, asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self, source: str, target: str) -> Conversation:
        link = self.mesh.links[f"{source}-to-{target}"]
        async with asyncio.timeout(PATIENCE_S):
            dialler = await asyncio.open_connection("127.0.0.1", link.listen)
            dialled = await self.arrivals[target].get()
        self.writers += [dialler[1], dialled[1]]
        return Conversation(dialler, dialled)

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()


@pytest.fixture
async def town(toxiproxy) -> AsyncIterator[Town]:
    arrivals = {name: asyncio.Queue() for name in "abc"}
    servers = {}
    for name, queue in arrivals.items():
        servers[name] = await asyncio.start_server(lambda *ends, queue=queue: queue.put_nowait(ends), "127.0.0.1", 0)
    ports = proxy_ports(find_base_port(1, 3), 0)
    links = [
        Link(source, target, next(ports), f"127.0.0.1:{servers[target].sockets[0].getsockname()[1]}")
        for source in "abc"
        for target in "abc"
        if source != target
    ]
    town = Town(Mesh(toxiproxy, links), arrivals)
    await asyncio.to_thread(town.mesh.start)
    try:
        yield town
    finally:
        await town.close()
        for server in servers.values():
            server.close()
        await asyncio.to_thread(toxiproxy.client.destroy_all)


@pytest.mark.parametrize(("source", "target"), [(s, t) for s in "abc" for t in "abc" if s != t])
async def test_a_cut_direction_is_cut_on_both_links_and_the_other_direction_is_not(town, source, target):
    own, other = await town.connect(source, target), await town.connect(target, source)
    await town.mesh.spoil("cut", [Direction(source, target)], SWALLOW)
    await own.say(b"lost")
    await other.say(b"lost", back=True)
    await other.say(b"heard")
    await own.say(b"heard", back=True)
    assert await other.hear(5) == b"heard"
    assert await own.hear(5, back=True) == b"heard"
    await town.mesh.release("cut")
    assert await own.hear(4) == b""
    assert await other.hear(4, back=True) == b""


async def test_no_other_link_is_touched(town):
    bystanders = [await town.connect(*pair) for pair in ("ac", "ca", "bc", "cb")]
    await town.mesh.spoil("cut", [Direction("a", "b"), Direction("b", "a")], SWALLOW)
    for each in bystanders:
        await each.say(b"ping")
        assert await each.hear(4) == b"ping"
        await each.say(b"pong", back=True)
        assert await each.hear(4, back=True) == b"pong"


async def test_held_bytes_arrive_late_on_the_same_connection(town):
    link = await town.connect("a", "b")
    await town.mesh.spoil("hold", [Direction("a", "b")], HOLD)
    await link.say(b"late")
    await link.say(b"early", back=True)
    assert await link.hear(5, back=True) == b"early"
    late = asyncio.create_task(link.hear(4))
    assert not late.done()
    await town.mesh.release("hold")
    assert await late == b"late"
    await link.say(b"on")
    assert await link.hear(2) == b"on"


@pytest.fixture
def impatient(monkeypatch):
    """Give up the removal of a toxic almost at once."""
    monkeypatch.setattr("dledger_chaos.toxiproxy.mesh.REMOVE_S", 0.3)


async def test_a_refused_link_ends_and_takes_no_connection_until_it_is_healed(town):
    link = await town.connect("a", "b")
    await town.mesh.refuse("one", [Direction("a", "b")])
    await town.mesh.refuse("two", [Direction("b", "a"), Direction("b", "c")])
    assert await link.hear(1) == await link.hear(1, back=True) == b""
    await town.mesh.release("one")
    with pytest.raises(ConnectionRefusedError):
        await town.connect("a", "b")
    await town.mesh.release("two")
    again = await town.connect("a", "b")
    await again.say(b"x")
    assert await again.hear(1) == b"x"


async def test_a_fault_stays_when_another_one_on_its_link_is_healed(town):
    await town.connect("a", "b")
    await town.mesh.spoil("slow", [Direction("a", "b")], Toxic("latency", {"latency": 30}))
    await town.mesh.spoil("hold", [Direction("a", "b")], HOLD)
    await town.mesh.release("slow")
    link = await town.connect("a", "b")
    await link.say(b"held")
    heard = asyncio.create_task(link.hear(4))
    await link.say(b"back", back=True)
    assert await link.hear(4, back=True) == b"back"
    assert not heard.done()
    await town.mesh.release("hold")
    assert await heard == b"held"


@pytest.mark.parametrize("first", ["slow", "hold"])
@pytest.mark.parametrize("slow", [Toxic("latency", {"latency": 30}), Toxic("bandwidth", {"rate": 5000})])
async def test_links_are_healed_despite_large_backlogs_of_other_faults(town, impatient, first, slow):
    """The links hold back much more than a toxic has room for. Their connections end with the toxic."""
    pairs = ("ab", "bc", "ca")
    directions = [Direction(*pair) for pair in pairs]
    links = [await town.connect(*pair) for pair in pairs]
    toxics = {"slow": slow, "hold": HOLD}
    for name in (first, *toxics.keys() - {first}):
        await town.mesh.spoil(name, directions, toxics[name])
    for link in links:
        link.dialler[1].write(bytes(64 << 20))
    await town.mesh.release("slow")
    await town.mesh.release("hold")
    for pair in pairs:
        again = await town.connect(*pair)
        await again.say(b"x")
        assert await again.hear(1) == b"x"


async def test_a_released_hold_delivers_its_backlog_to_a_reader(town):
    sent = bytes(8 << 20)
    link = await town.connect("a", "b")
    await town.mesh.spoil("hold", [Direction("a", "b")], HOLD)
    link.dialler[1].write(sent)
    release = asyncio.create_task(town.mesh.release("hold"))
    assert await link.hear(len(sent)) == sent
    await release


async def test_healing_a_held_link_drops_its_backlog_and_keeps_other_faults(town, impatient):
    link = await town.connect("a", "b")
    await town.mesh.refuse("refused", [Direction("c", "a")])
    await town.mesh.spoil("cut", [Direction("b", "c")], SWALLOW)
    await town.mesh.spoil("hold", [Direction("a", "b"), Direction("b", "a")], HOLD)
    link.dialler[1].write(bytes(64 << 20))
    await town.mesh.release("hold")
    again = await town.connect("a", "b")
    await again.say(b"x")
    assert await again.hear(1) == b"x"
    with pytest.raises(ConnectionRefusedError):
        await town.connect("c", "a")
    cut = await town.connect("c", "b")
    await cut.say(b"from b", back=True)
    await cut.say(b"to b")
    assert await cut.hear(4) == b"to b"
    await town.mesh.release_all()
    assert await cut.hear(1, back=True) == b"", "what was swallowed never comes"


async def test_everything_is_healed_at_once(town):
    await town.mesh.refuse("refused", [Direction("a", "b")])
    await town.mesh.spoil("cut", [Direction("b", "c")], SWALLOW)
    await town.mesh.release_all()
    for pair in ("ab", "bc"):
        link = await town.connect(*pair)
        await link.say(b"x")
        assert await link.hear(1) == b"x"


async def test_a_fault_that_would_hit_no_link_is_refused(tmp_path):
    """A group without name servers cannot be cut off from them."""
    mesh = Mesh(ToxiproxyServer(tmp_path, 1, log_file=tmp_path / "log"), [Link("a", "b", 1, "127.0.0.1:2")])
    nobody = [Direction("a", NAMESRV), Direction(NAMESRV, "a")]
    with pytest.raises(TargetError, match="no link"):
        await mesh.spoil("fault", nobody, HOLD)
    with pytest.raises(TargetError, match="no link"):
        await mesh.refuse("fault", nobody)
