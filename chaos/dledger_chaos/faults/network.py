"""Links that are cut in one direction or both, and links that are slow or break connections."""

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
"""Ways to cut a direction.

- `swallow`: bytes vanish, and healing ends the connection.
- `hold`: bytes wait, and arrive when healed.
- `refuse`: connections end, and new ones are refused. This closes both directions of a link.
"""

_CUT_TOXICS: Final = {"swallow": Toxic("timeout", {"timeout": 0}), "hold": HOLD}


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing gets through in `directions`, pairs of (from, to)."""

    directions: tuple[tuple[str, str], ...]
    style: CutStyle
    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        directions = [Direction(*pair) for pair in self.directions]
        if self.style == "refuse":
            await target.mesh.refuse(self, directions)
        else:
            await target.mesh.spoil(self, directions, _CUT_TOXICS[self.style])

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await target.mesh.release(self)


@dataclass(frozen=True, slots=True)
class Spoil:
    """A toxic of toxiproxy on all `directions`; `attributes` are the names and values of its attributes."""

    directions: tuple[tuple[str, str], ...]
    kind: str
    attributes: tuple[tuple[str, int], ...]
    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        directions = [Direction(*pair) for pair in self.directions]
        await target.mesh.spoil(self, directions, Toxic(self.kind, dict(self.attributes)))

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await target.mesh.release(self)


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """Peers that `nodes` dial take their bytes, but all answers on these links are lost."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        links = [
            link for link in target.mesh.links.values() if link.source in self.nodes and link.target not in NAME_SERVERS
        ]
        await target.mesh.spoil_links(self, links, "downstream", _CUT_TOXICS["swallow"])

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await target.mesh.release(self)


Directions = tuple[tuple[str, str], ...]


def between(left: Iterable[str], right: Iterable[str]) -> Directions:
    """Return both directions between every one of `left` and every one of `right`."""
    pairs = list(product(left, right))
    return (*pairs, *((target, source) for source, target in pairs))


def among(nodes: Iterable[str]) -> Directions:
    """Return all directions among `nodes`."""
    return tuple(permutations(nodes, 2))


def _draw_isolation(s: Surroundings, node: str) -> Cut:
    """Cut one node off from all others, and in half of the cases also from clients and name servers."""
    others = s.others(node)
    outside = (CLIENTS, *s.name_servers) if s.rng.random() < 0.5 else ()
    return Cut(between((node,), (*others, *outside)), s.rng.choice(STYLES), (node,))


def _draw_halves(s: Surroundings) -> Cut:
    """Cut a majority off from the minority, and clients from the majority."""
    majority = s.majority()
    rest = tuple(member for member in s.members if member not in majority)
    return Cut((*between(majority, rest), *between((CLIENTS,), majority)), s.rng.choice(STYLES), rest)


def _draw_ring(s: Surroundings) -> Cut:
    """Let each node hear only the previous node of a ring, so that no two of three nodes hear each other."""
    order = s.rng.sample(s.members, len(s.members))
    hearing = set(pairwise((*order, order[0])))
    cut = tuple(pair for pair in among(s.members) if pair not in hearing)
    return Cut(cut, s.rng.choice(("swallow", "hold")), s.members)


def _draw_bridge(s: Surroundings) -> Cut:
    """Cut all links except those of one node, which still reaches every node."""
    middle = s.one()
    return Cut(among(s.others(middle)), s.rng.choice(STYLES), s.others(middle))


def _draw_one_way(s: Surroundings) -> Cut:
    """Cut the leader off in one direction, from one follower or from all of them."""
    leader = s.a_leader()
    others = s.others(leader)
    ends = others if s.rng.random() < 0.5 else (s.rng.choice(others),)
    speaks = s.rng.random() < 0.5
    cut = tuple((leader, other) if speaks else (other, leader) for other in ends)
    return Cut(cut, s.rng.choice(("swallow", "hold")), (leader,))


def _draw_cut_from_clients(s: Surroundings) -> Cut:
    leader = s.a_leader()
    return Cut(between((CLIENTS,), (leader,)), s.rng.choice(STYLES), (leader,))


def _draw_cut_from_name_server(s: Surroundings) -> Cut:
    return Cut(between(s.members, (s.rng.choice(s.name_servers),)), s.rng.choice(STYLES), s.members)


def _get_all_directions(s: Surroundings) -> Directions:
    return (*among(s.members), *between((CLIENTS,), s.members))


def around(s: Surroundings, node: str) -> Directions:
    """Return all directions from and to a node, including those of clients."""
    return between((node,), (*s.others(node), CLIENTS))


def _draw_directions(s: Surroundings) -> tuple[str, Directions]:
    node = s.one()
    return node, around(s, node)


def _draw_latency(s: Surroundings) -> Spoil:
    attributes = (("latency", s.rng.randint(20, 400)), ("jitter", s.rng.choice((0, 20, 100, 300))))
    return Spoil(_get_all_directions(s), "latency", attributes, s.members)


def _draw_bandwidth(s: Surroundings) -> Spoil:
    node, directions = _draw_directions(s)
    return Spoil(directions, "bandwidth", (("rate", s.rng.choice((10, 50, 200, 1000))),), (node,))


def _draw_slicing(s: Surroundings) -> Spoil:
    """Slice streams into parts of a few bytes, with pauses of microseconds between them."""
    node, directions = _draw_directions(s)
    size = s.rng.choice((1, 1, 7, 100))
    attributes = (("average_size", size), ("size_variation", size // 2), ("delay", s.rng.choice((0, 10))))
    return Spoil(directions, "slicer", attributes, (node,))


def _draw_reset(s: Surroundings) -> Spoil:
    node, directions = _draw_directions(s)
    return Spoil(directions, "reset_peer", (("timeout", s.rng.choice((0, 100, 1000))),), (node,))


def _draw_slow_close(s: Surroundings) -> Spoil:
    node, directions = _draw_directions(s)
    return Spoil(directions, "slow_close", (("delay", s.rng.randint(200, 3000)),), (node,))


KINDS: Final = (
    FaultKind("partition-node", "network", "one node cut off", lambda s: _draw_isolation(s, s.one()), (2.0, 15.0)),
    FaultKind(
        "partition-leader", "network", "the leader cut off", lambda s: _draw_isolation(s, s.a_leader()), (2.0, 15.0)
    ),
    FaultKind(
        "partition-halves", "network", "a majority cut off from the rest and from clients", _draw_halves, (2.0, 15.0)
    ),
    FaultKind("partition-ring", "network", "each node hears only one other", _draw_ring, (2.0, 15.0)),
    FaultKind("partition-bridge", "network", "two nodes hear only the third", _draw_bridge, (2.0, 15.0)),
    FaultKind("partition-one-way", "network", "one direction from or to the leader cut", _draw_one_way, (2.0, 15.0)),
    FaultKind(
        "partition-clients", "network", "the leader cut off from all clients", _draw_cut_from_clients, (2.0, 15.0)
    ),
    FaultKind(
        "partition-namesrv", "network", "all nodes cut off from a name server", _draw_cut_from_name_server, (2.0, 20.0)
    ),
    FaultKind("latency", "network", "20 to 400 ms of latency with jitter on every link", _draw_latency, (2.0, 15.0)),
    FaultKind("bandwidth", "network", "10 to 1,000 KB/s to and from one node", _draw_bandwidth, (2.0, 15.0)),
    FaultKind("slicing", "network", "bytes to and from one node arrive in small pieces", _draw_slicing, (2.0, 10.0)),
    FaultKind("reset", "network", "connections to and from one node are reset", _draw_reset, (1.0, 8.0)),
    FaultKind("half-open", "network", "one node gets no answers", lambda s: HalfOpen((s.one(),)), (2.0, 15.0)),
    FaultKind("slow-close", "network", "connections of one node close late", _draw_slow_close, (2.0, 10.0)),
)
