"""The proxied links of a cluster, and what faults do to them.

A link is a proxy: whoever dials its target finds the proxy's address in its configuration.  A group of three nodes has
twelve: six between the nodes (A dials B at one address, C dials B at another), one from the clients to each node, one
from each node to the name server.

A proxy sees connections, each with two streams: *upstream* from the dialler to the dialled, *downstream* back.  What A
says to B travels upstream on A's link to B and downstream on B's link to A, so cutting one direction takes both.

Toxics are named after the fault that holds them, so that faults overlap freely and each is healed by itself.
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
"""The end of a link at which all clients are."""

NAMESRV: Final = "namesrv"
"""The end of a link at which the name server is."""

SECOND_NAMESRV: Final = "namesrv-2"
"""The same of another one, in a cluster that has two."""

NAME_SERVERS: Final = frozenset({NAMESRV, SECOND_NAMESRV})

REMOVE_S: Final = 5.0
"""The server removes a toxic at once, once what it holds was taken, or never."""

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
        """Where `source` dials."""
        return f"{self.host}:{self.listen}"


class Direction(NamedTuple):
    """All bytes that `source` sends to `target`, whoever dialled."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Toxic:
    """What happens to a direction, in toxiproxy's terms; see its documentation for the attributes' units.

    Three ways to cut: `timeout` with `timeout=0` swallows what is sent and ends the connections when healed; `HOLD`
    keeps it and delivers it when healed; a refused link (see `Mesh.refuse`) ends at once.
    """

    kind: str
    attributes: Mapping[str, int] = field(default_factory=dict)
    toxicity: float = 1.0


HOLD: Final = Toxic("latency", {"latency": 3_600_000})
"""Keeps what is sent.  So does `bandwidth` with `rate=0`, but behind it no other toxic of the stream can be removed:
what that one still has finds no room.  Here there is room for 1,024 pieces.
"""


class _Placed(NamedTuple):
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
        self._serial = count(1)
        self._placed: dict[Hashable, list[_Placed]] = {}
        self._refused: dict[Hashable, tuple[str, ...]] = {}
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
        """Where `source` dials `target`."""
        return self.links[f"{source}-to-{target}"].address

    def streams(self, direction: Direction) -> Iterator[tuple[Link, Stream]]:
        """Yield the streams that carry a direction: of the links that either end dialled."""
        dialled = self.links.get(f"{direction.source}-to-{direction.target}")
        if dialled is not None:
            yield dialled, "upstream"
        accepted = self.links.get(f"{direction.target}-to-{direction.source}")
        if accepted is not None:
            yield accepted, "downstream"

    def _streams(self, directions: Iterable[Direction]) -> list[tuple[Link, Stream]]:
        """All streams that carry directions; raises `TargetError` if there is none: a fault there would hit nobody."""
        streams = [pair for direction in directions for pair in self.streams(direction)]
        if not streams:
            raise TargetError("no link of this cluster carries any of these directions")
        return streams

    async def spoil(self, holder: Hashable, directions: Iterable[Direction], toxic: Toxic) -> None:
        """Put a toxic on directions, in the name of `holder`, until `release(holder)`."""
        streams = dict.fromkeys(self._streams(directions))
        await asyncio.to_thread(self._add, holder, list(streams), toxic)

    async def spoil_links(self, holder: Hashable, links: Iterable[Link], stream: Stream, toxic: Toxic) -> None:
        """Put a toxic on one stream of links."""
        await asyncio.to_thread(self._add, holder, [(link, stream) for link in links], toxic)

    async def refuse(self, holder: Hashable, directions: Iterable[Direction]) -> None:
        """Close every link that a direction uses, both ways: connections end, new ones are refused."""
        names = tuple(dict.fromkeys(link.name for link, _ in self._streams(directions)))
        await asyncio.to_thread(self._disable, holder, names)

    async def release(self, holder: Hashable) -> None:
        """Heal what `holder` did to any link; nothing happens if that is nothing."""
        await asyncio.to_thread(self._release, holder)

    async def release_all(self) -> None:
        """Heal every link, whoever spoiled it."""
        await asyncio.to_thread(self._reset)

    def _add(self, holder: Hashable, streams: list[tuple[Link, Stream]], toxic: Toxic) -> None:
        with self._lock:
            placed = self._placed.setdefault(holder, [])
            for link, stream in streams:
                one = _Placed(link.name, f"fault-{next(self._serial)}", stream, toxic)
                self._place(one)
                placed.append(one)

    def _place(self, placed: _Placed) -> None:
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

    def _disable(self, holder: Hashable, names: tuple[str, ...]) -> None:
        with self._lock:
            self._refused[holder] = names
            for name in names:
                self._proxies[name].disable()

    def _release(self, holder: Hashable) -> None:
        with self._lock:
            self._heal(self._placed.pop(holder, []), self._refused.pop(holder, ()))

    def _reset(self) -> None:
        with self._lock:
            placed = [each for held in self._placed.values() for each in held]
            refused = [name for names in self._refused.values() for name in names]
            self._placed.clear()
            self._refused.clear()
            self._heal(placed, refused)

    def _heal(self, placed: Sequence[_Placed], refused: Iterable[str]) -> None:
        """Remove toxics, and enable links that nobody refuses any more.

        What a toxic holds goes to the next one on its stream, or to who reads there.  If nobody takes it, the server
        never answers about that link again, and it is replaced: all connections end.
        """
        if all(map(self._remove, placed)):
            for name in set(refused) - self._still_refused:
                self._proxies[name].enable()
        else:
            self._server.stop()
            self._server.start()
            self.start()
            for name in self._still_refused:
                self._proxies[name].disable()
            for held in self._placed.values():
                for each in held:
                    self._place(each)

    @property
    def _still_refused(self) -> set[str]:
        return {name for names in self._refused.values() for name in names}

    def _remove(self, placed: _Placed) -> bool:
        """Whether the server has removed a toxic."""
        try:
            self._server.call("DELETE", f"/proxies/{placed.proxy}/toxics/{placed.name}", timeout_s=REMOVE_S)
        except TargetError:
            return False
        return True
