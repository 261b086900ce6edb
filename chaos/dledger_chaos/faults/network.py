"""Links that are cut, in one direction or both, and links that are bad."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from typing import Final, Literal

from ..target import Target
from ..toxiproxy.mesh import CLIENTS, HOLD, NAME_SERVERS, Direction, Toxic
from .base import FaultKind, Surroundings

CutStyle = Literal["swallow", "hold", "refuse"]
STYLES: Final[tuple[CutStyle, ...]] = ("swallow", "hold", "refuse")
"""Bytes vanish and the connection ends when healed; bytes wait and arrive when healed; connections end and are refused.

`refuse` closes whole links: it is no cut of one direction.
"""

_CUTS: Final = {"swallow": Toxic("timeout", {"timeout": 0}), "hold": HOLD}


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing gets through in `directions`, pairs of (from, to)."""

    directions: tuple[tuple[str, str], ...]
    style: CutStyle
    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        directions = [Direction(*pair) for pair in self.directions]
        if self.style == "refuse":
            await target.mesh.refuse(self, directions)
        else:
            await target.mesh.spoil(self, directions, _CUTS[self.style])

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await target.mesh.release(self)


@dataclass(frozen=True, slots=True)
class Spoil:
    """Everything in `directions` suffers a toxic of toxiproxy's; `attributes` are its names and values."""

    directions: tuple[tuple[str, str], ...]
    kind: str
    attributes: tuple[tuple[str, int], ...]
    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        directions = [Direction(*pair) for pair in self.directions]
        await target.mesh.spoil(self, directions, Toxic(self.kind, dict(self.attributes)))

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await target.mesh.release(self)


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """What `nodes` dial takes their bytes and gives none back: the other end lives, and its answers are lost."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        links = [
            link for link in target.mesh.links.values() if link.source in self.nodes and link.target not in NAME_SERVERS
        ]
        await target.mesh.spoil_links(self, links, "downstream", _CUTS["swallow"])

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await target.mesh.release(self)


Directions = tuple[tuple[str, str], ...]


def between(left: Iterable[str], right: Iterable[str]) -> Directions:
    """Both directions between every one of `left` and every one of `right`."""
    pairs = list(product(left, right))
    return (*pairs, *((target, source) for source, target in pairs))


def among(nodes: Iterable[str]) -> Directions:
    """All directions among `nodes`."""
    return tuple(permutations(nodes, 2))


def _isolated(s: Surroundings, node: str) -> Cut:
    """One node away from the others, and in half of the cases from clients and name servers too."""
    others = s.others(node)
    outside = (CLIENTS, *s.name_servers) if s.rng.random() < 0.5 else ()
    return Cut(between((node,), (*others, *outside)), s.rng.choice(STYLES), (node,))


def _halves(s: Surroundings) -> Cut:
    """A majority here, the rest there; clients reach only the rest."""
    majority = s.majority()
    rest = tuple(member for member in s.members if member not in majority)
    return Cut((*between(majority, rest), *between((CLIENTS,), majority)), s.rng.choice(STYLES), rest)


def _ring(s: Surroundings) -> Cut:
    """Each hears only the one before it: majorities exist everywhere, and no two nodes hear each other."""
    order = s.rng.sample(s.members, len(s.members))
    heard = set(pairwise((*order, order[0])))
    cut = tuple(pair for pair in among(s.members) if pair not in heard)
    return Cut(cut, s.rng.choice(("swallow", "hold")), s.members)


def _bridge(s: Surroundings) -> Cut:
    """One node reaches everyone, the others reach only it."""
    middle = s.one()
    return Cut(among(s.others(middle)), s.rng.choice(STYLES), s.others(middle))


def _one_direction(s: Surroundings) -> Cut:
    """The leader is not heard, or does not hear; by one follower or by all of them."""
    leader = s.a_leader()
    others = s.others(leader)
    ends = others if s.rng.random() < 0.5 else (s.rng.choice(others),)
    speaks = s.rng.random() < 0.5
    cut = tuple((leader, other) if speaks else (other, leader) for other in ends)
    return Cut(cut, s.rng.choice(("swallow", "hold")), (leader,))


def _clients(s: Surroundings) -> Cut:
    leader = s.a_leader()
    return Cut(between((CLIENTS,), (leader,)), s.rng.choice(STYLES), (leader,))


def _namesrv(s: Surroundings) -> Cut:
    return Cut(between(s.members, (s.rng.choice(s.name_servers),)), s.rng.choice(STYLES), s.members)


def _everywhere(s: Surroundings) -> Directions:
    return (*among(s.members), *between((CLIENTS,), s.members))


def _around(s: Surroundings) -> tuple[str, Directions]:
    node = s.one()
    return node, between((node,), (*s.others(node), CLIENTS))


def _latency(s: Surroundings) -> Spoil:
    attributes = (("latency", s.rng.randint(20, 400)), ("jitter", s.rng.choice((0, 20, 100, 300))))
    return Spoil(_everywhere(s), "latency", attributes, s.members)


def _bandwidth(s: Surroundings) -> Spoil:
    node, directions = _around(s)
    return Spoil(directions, "bandwidth", (("rate", s.rng.choice((10, 50, 200, 1000))),), (node,))


def _slicing(s: Surroundings) -> Spoil:
    """Down to single bytes, with pauses of microseconds between them."""
    node, directions = _around(s)
    size = s.rng.choice((1, 1, 7, 100))
    attributes = (("average_size", size), ("size_variation", size // 2), ("delay", s.rng.choice((0, 10))))
    return Spoil(directions, "slicer", attributes, (node,))


def _reset(s: Surroundings) -> Spoil:
    node, directions = _around(s)
    return Spoil(directions, "reset_peer", (("timeout", s.rng.choice((0, 100, 1000))),), (node,))


def _slow_close(s: Surroundings) -> Spoil:
    node, directions = _around(s)
    return Spoil(directions, "slow_close", (("delay", s.rng.randint(200, 3000)),), (node,))


KINDS: Final = (
    FaultKind("partition-node", "network", "one node cut off", lambda s: _isolated(s, s.one()), (2.0, 15.0)),
    FaultKind("partition-leader", "network", "the leader cut off", lambda s: _isolated(s, s.a_leader()), (2.0, 15.0)),
    FaultKind("partition-halves", "network", "a majority cut off from the rest and from clients", _halves, (2.0, 15.0)),
    FaultKind("partition-ring", "network", "each node hears only one other", _ring, (2.0, 15.0)),
    FaultKind("partition-bridge", "network", "two nodes hear only the third", _bridge, (2.0, 15.0)),
    FaultKind("partition-one-way", "network", "one direction from or to the leader cut", _one_direction, (2.0, 15.0)),
    FaultKind("partition-clients", "network", "the leader cut off from all clients", _clients, (2.0, 15.0)),
    FaultKind("partition-namesrv", "network", "all nodes cut off from a name server", _namesrv, (2.0, 20.0)),
    FaultKind("latency", "network", "20 to 400 ms of latency with jitter on every link", _latency, (2.0, 15.0)),
    FaultKind("bandwidth", "network", "10 to 1,000 KB/s to and from one node", _bandwidth, (2.0, 15.0)),
    FaultKind("slicing", "network", "bytes to and from one node arrive in small pieces", _slicing, (2.0, 10.0)),
    FaultKind("reset", "network", "connections to and from one node are reset", _reset, (1.0, 8.0)),
    FaultKind("half-open", "network", "one node gets no answers", lambda s: HalfOpen((s.one(),)), (2.0, 15.0)),
    FaultKind("slow-close", "network", "connections of one node close late", _slow_close, (2.0, 10.0)),
)
