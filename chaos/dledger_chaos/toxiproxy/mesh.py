"""Proxied links of a cluster, and the effects of faults on them.

A link is a proxy: the dialling process finds the proxy's address in its configuration. A group of three nodes has
twelve links. Six are between the nodes: A dials B at one address, C dials B at another. Three lead from the clients to
the nodes, and three from the nodes to the name server.

A connection has two streams: *upstream* from the dialler to the dialled process, and *downstream* back. Bytes from A to
B travel upstream on A's link to B, and downstream on B's link to A. So a cut of one direction affects both links.

Every toxic belongs to the fault that holds it, so that faults overlap freely and each is healed by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Final, Literal, NamedTuple

from toxiproxy import Proxy
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from ..errors import TargetError
from .server import HOST, ToxiproxyServer

CLIENTS: Final = "clients"
"""Name of the end of a link for all clients."""

NAMESRV: Final = "namesrv"
"""Name of the end of a link for the name server."""

SECOND_NAMESRV: Final = "namesrv-2"
"""Name of the end of a link for the second name server, in a cluster that has two."""

NAME_SERVERS: Final = frozenset({NAMESRV, SECOND_NAMESRV})

PROXY_NAMES: Final = ("proxy-a", "proxy-b")
"""Names of the proxies for RocketMQ 5's clients, in a cluster that has them."""

REMOVE_S: Final = 5.0
"""Time limit in seconds for the server to remove a toxic. Removal hangs if nobody takes the bytes that it holds."""

Stream = Literal["upstream", "downstream"]


@dataclass(frozen=True, slots=True)
class Link:
    """One proxy: `source` dials it on port `listen` of `host`, and it dials `upstream` (host:port) of `target`."""

    source: str
    target: str
    listen: int
    upstream: str
    host: str = HOST

    @property
    def name(self) -> str:
        """The proxy's name, fit for a URL."""
        return f"{self.source}-to-{self.target}"

    @property
    def address(self) -> str:
        """The address that `source` dials."""
        return f"{self.host}:{self.listen}"


class Direction(NamedTuple):
    """All bytes that `source` sends to `target`, on links that either of them dials."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Toxic:
    """Effect on a direction, in toxiproxy's terms; its documentation has the attributes' units.

    There are three ways to cut. `timeout` with `timeout=0` swallows the sent bytes and ends the connections when
    healed. `HOLD` keeps the bytes and delivers them when healed. A refused link (`Mesh.refuse`) ends at once.
    """

    kind: str
    attributes: Mapping[str, int] = field(default_factory=dict)
    toxicity: float = 1.0


HOLD: Final = Toxic("latency", {"latency": 3_600_000})
"""Toxic that holds all bytes until it is removed.

`bandwidth` with `rate=0` would hold them, too. But then no other toxic of the stream could be removed, because nothing
would take the bytes that it holds. This toxic takes up to 1,024 buffers.
"""


class _PlacedToxic(NamedTuple):
    proxy: str
    name: str
    stream: Stream
    toxic: Toxic


class Mesh:
    """The links of a running cluster.  `start` creates the proxies; the server has to run until `stop`."""

    def __init__(self, server: ToxiproxyServer, links: Iterable[Link]) -> None:
        self.links = {link.name: link for link in links}
        self._server = server
        self._proxies: dict[str, Proxy] = {}
        self._toxic_numbers = count(1)
        self._toxics: dict[Hashable, list[_PlacedToxic]] = {}
        self._refused_links: dict[Hashable, tuple[str, ...]] = {}
        self._lock = Lock()

    def start(self) -> None:
        """Create all proxies in one call; blocks.  Raises `TargetError`, for one if a port is in use."""
        self._server.call(
            "POST",
            "/populate",
            [
                {"name": link.name, "listen": link.address, "upstream": link.upstream, "enabled": True}
                for link in self.links.values()
            ],
        )
        self._proxies = self._server.client.proxies()

    def address(self, source: str, target: str) -> str:
        """Return the address at which `source` dials `target`."""
        return self.links[f"{source}-to-{target}"].address

    def streams(self, direction: Direction) -> Iterator[tuple[Link, Stream]]:
        """Yield the streams that carry a direction, on links that either end dials."""
        dialled = self.links.get(f"{direction.source}-to-{direction.target}")
        if dialled is not None:
            yield dialled, "upstream"
        accepted = self.links.get(f"{direction.target}-to-{direction.source}")
        if accepted is not None:
            yield accepted, "downstream"

    def _find_streams(self, directions: Iterable[Direction]) -> list[tuple[Link, Stream]]:
        """Return all streams that carry directions. Raises `TargetError` without any: a fault would do nothing."""
        streams = [pair for direction in directions for pair in self.streams(direction)]
        if not streams:
            raise TargetError("no link of this cluster carries any of these directions")
        return streams

    async def spoil(self, holder: Hashable, directions: Iterable[Direction], toxic: Toxic) -> None:
        """Put a toxic on directions until `release(holder)`."""
        streams = dict.fromkeys(self._find_streams(directions))
        await asyncio.to_thread(self._add_toxics, holder, list(streams), toxic)

    async def spoil_links(self, holder: Hashable, links: Iterable[Link], stream: Stream, toxic: Toxic) -> None:
        """Put a toxic on one stream of links."""
        await asyncio.to_thread(self._add_toxics, holder, [(link, stream) for link in links], toxic)

    async def refuse(self, holder: Hashable, directions: Iterable[Direction]) -> None:
        """Close every link of these directions until `release(holder)`: connections end, and new ones are refused."""
        names = tuple(dict.fromkeys(link.name for link, _ in self._find_streams(directions)))
        await asyncio.to_thread(self._disable_links, holder, names)

    async def release(self, holder: Hashable) -> None:
        """Remove the toxics of a holder, and reopen the links that it has closed."""
        await asyncio.to_thread(self._release_holder, holder)

    async def release_all(self) -> None:
        """Heal every link, for all holders."""
        await asyncio.to_thread(self._release_everything)

    def _add_toxics(self, holder: Hashable, streams: list[tuple[Link, Stream]], toxic: Toxic) -> None:
        with self._lock:
            placed = self._toxics.setdefault(holder, [])
            for link, stream in streams:
                toxic_on_link = _PlacedToxic(link.name, f"fault-{next(self._toxic_numbers)}", stream, toxic)
                self._place_toxic(toxic_on_link)
                placed.append(toxic_on_link)

    def _place_toxic(self, placed: _PlacedToxic) -> None:
        toxic = placed.toxic
        try:
            self._proxies[placed.proxy].add_toxic(
                type=toxic.kind,
                stream=placed.stream,
                name=placed.name,
                toxicity=toxic.toxicity,
                attributes=dict(toxic.attributes),
            )
        except (InvalidToxic, NotFound, ProxyExists, OSError) as error:
            raise TargetError(f"toxiproxy refused {toxic} on {placed.proxy}: {error}") from error

    def _disable_links(self, holder: Hashable, names: tuple[str, ...]) -> None:
        with self._lock:
            self._refused_links[holder] = names
            for name in names:
                self._proxies[name].disable()

    def _release_holder(self, holder: Hashable) -> None:
        with self._lock:
            self._heal_links(self._toxics.pop(holder, []), self._refused_links.pop(holder, ()))

    def _release_everything(self) -> None:
        with self._lock:
            placed = [each for held in self._toxics.values() for each in held]
            refused = [name for names in self._refused_links.values() for name in names]
            self._toxics.clear()
            self._refused_links.clear()
            self._heal_links(placed, refused)

    def _heal_links(self, placed: Sequence[_PlacedToxic], refused: Iterable[str]) -> None:
        """Remove toxics, and enable links that no holder refuses any more.

        The held bytes of a removed toxic go to the next toxic on the stream, or to the reader. If neither takes them,
        the server never answers about that link again. Then the server is replaced, which ends all connections.
        """
        if all(map(self._remove_toxic, placed)):
            for name in set(refused) - self._refused_names:
                self._proxies[name].enable()
        else:
            self._server.stop()
            self._server.start()
            self.start()
            for name in self._refused_names:
                self._proxies[name].disable()
            for held in self._toxics.values():
                for each in held:
                    self._place_toxic(each)

    @property
    def _refused_names(self) -> set[str]:
        return {name for names in self._refused_links.values() for name in names}

    def _remove_toxic(self, placed: _PlacedToxic) -> bool:
        """Remove a toxic; return True if the server has removed it."""
        try:
            self._server.call("DELETE", f"/proxies/{placed.proxy}/toxics/{placed.name}", timeout_s=REMOVE_S)
        except TargetError:
            return False
        return True
