"""Parts of a node: what each feature does on it, and what it is made of.

A feature is declared as a `Feature`. A node makes the parts of all features in their order, so that a part finds those
that were made before it (`context.parts[PinRequests]`), joins their routes, and starts and stops them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar, cast

from dledger.environment import Environment
from dledger.invariants import invariant
from dledger.log import Log
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Requests
from dledger_broker.kernel.roles import Roles
from dledger_broker.kernel.routes import Route
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.hosts import HostAddress

P = TypeVar("P")


class Gauge(NamedTuple):
    """A number of this moment, which the HTTP port shows as `dledger_broker_` and the name."""

    name: str
    help: str
    read: Callable[[], float]


Sample: TypeAlias = tuple[tuple[str, ...], float]
"""A number, and the values of its labels."""


class LabelledGauge(NamedTuple):
    """As `Gauge`, with a number for each of the values of `labels`, of which there must not be many."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[Sample]]


class Part:
    """A feature's part of one node; a part inherits from this and says only what concerns it.

    A node stops in this order: its `jobs` end; `stop` of all parts, the last one first; `release`; then no request is
    under way any more, and `close`; `save`, before and after the clients are heard no more.
    """

    @property
    def routes(self) -> Mapping[int, Route]:
        """How its request codes are handled."""
        return {}

    @property
    def jobs(self) -> Sequence[Job]:
        """What it does by itself while this node leads."""
        return ()

    @property
    def gauges(self) -> Sequence[Gauge]:
        """What it shows of itself."""
        return ()

    @property
    def labelled_gauges(self) -> Sequence[LabelledGauge]:
        """What it shows of several by their names."""
        return ()

    @property
    def needs_from(self) -> int | None:
        """The position from which on it needs the log; None if it needs nothing of it. A full disk overrides it."""
        return None

    def overridden(self, position: int) -> None:
        """Leader: the log below a position above `needs_from` is about to be trimmed for a full disk."""

    def start(self) -> None:
        """The node has started."""

    def stop(self) -> None:
        """Begin nothing more; what is under way goes on."""

    def release(self) -> None:
        """Answer the requests that are held until something happens, and hold no more: the node leaves its group's
        route, or stops. May be called twice.
        """

    def close(self) -> None:
        """End what is left; nothing is asked any more."""

    async def save(self) -> None:
        """Leader: have the log take what is held back, unless that takes too long."""


class Parts:
    """What a node is made of, by class: the parts of features, and what was made before them."""

    def __init__(self, *before: object) -> None:
        self._by_class: dict[type, object] = {}
        self._activated: dict[Part, str] = {}
        for made in before:
            self.add(made)

    def add(self, made: object) -> None:
        """One more."""
        invariant(type(made) not in self._by_class, "a node has one part of a class", part=type(made))
        self._by_class[type(made)] = made

    def build(self, feature: Feature, context: Context) -> None:
        """Make the part of a feature."""
        part = feature.build(context)
        self.add(part)
        if feature.activated:
            self._activated[part] = feature.name

    def __getitem__(self, kind: type[P]) -> P:
        """The one of a class; what is made later is no part yet."""
        return cast(P, self._by_class[kind])

    def __iter__(self) -> Iterator[Part]:
        """The parts of features, in their order."""
        return (made for made in self._by_class.values() if isinstance(made, Part))

    def __reversed__(self) -> Iterator[Part]:
        """The parts of features, the last one first."""
        return reversed(list(self))

    def routes(self) -> Mapping[int, Route]:
        """The routes of all parts; every other code is answered 3."""
        routes: dict[int, Route] = {}
        for part in self:
            invariant(routes.keys().isdisjoint(part.routes), "a request code has one handler", part=type(part))
            feature = self._activated.get(part)
            routes.update({code: route._replace(feature=feature) for code, route in part.routes.items()})
        return routes


@dataclass(frozen=True)
class Context:
    """What a feature's part is made from. `config` is what the node has started with, `live` what counts now of keys
    that are live; `store_host` is the numeric address that records and message ids carry.
    """

    config: BrokerConfig
    live: LiveConfig
    machine: BrokerMachine
    log: Log
    env: Environment
    group: Group
    counters: BrokerCounters
    requests: Requests
    announcements: Announcements
    roles: Roles
    store_host: HostAddress
    writer: LogWriter
    clock: GroupClock
    parts: Parts
    access: Access


@dataclass(frozen=True, kw_only=True)
class Feature(Replicated):
    """One feature: what it replicates, and `build`, which makes its part of a node."""

    build: Callable[[Context], Part]
