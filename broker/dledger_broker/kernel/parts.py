"""Parts of a node: each feature's share of the node, and the arguments that parts are made from.

A feature is declared as a `Feature`. A node makes the parts of all features in their order, so that a part can use the
parts made before it (`context.parts[PinRequests]`). It joins their routes, and starts and stops them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar, cast

from dledger.environment import Environment
from dledger.log import Log
from dledger_base.invariants import invariant
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.audit import SubjectState
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.leadership import LeadershipView
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
"""The values of labels, and the number for them."""


class LabelledGauge(NamedTuple):
    """Like `Gauge`, with a number for each combination of values of `labels`. There must not be many."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[Sample]]


class Part(EventListener):
    """A feature's part of one node. A part inherits from this class and overrides only what it needs.

    It hears of events as an `EventListener`, in the order of the features.

    A node stops in this order: its `jobs` end, `stop` of all parts (the last part first), then `release`. When no
    request is under way any more, `close` follows, and `save` before and after the node stops reading from clients.
    """

    @property
    def routes(self) -> Mapping[int, Route]:
        """The routes of its request codes."""
        return {}

    @property
    def audited(self) -> Mapping[int, SubjectState]:
        """Its request codes that the audit log records, each with a function that returns the state of the request's
        subject.
        """
        return {}

    @property
    def jobs(self) -> Sequence[Job]:
        """Its leader jobs."""
        return ()

    @property
    def gauges(self) -> Sequence[Gauge]:
        """Its gauges."""
        return ()

    @property
    def labelled_gauges(self) -> Sequence[LabelledGauge]:
        """Its gauges with several values under labels."""
        return ()

    @property
    def needs_from(self) -> int | None:
        """The position from which on it needs the log, None if it needs nothing of it.

        Only `when_full = "delete-oldest"` overrides it.
        """
        return None

    def trims_below(self, position: int) -> None:
        """Note, on the leader, that the log is about to be trimmed below a position.

        It may be above `needs_from`, for a full disk.
        """

    def meet(self, parts: Parts) -> None:
        """Find the parts of other features that it asks. Called when all parts of the node are made."""

    def start(self) -> None:
        """Begin to work, because the node has started."""

    def stop(self) -> None:
        """Begin no further work. Work under way continues."""

    def release(self) -> None:
        """Answer the requests that are held until something happens, and hold no more.

        Called when the node leaves its group's route, or stops. May be called twice.
        """

    def close(self) -> None:
        """End the remaining work. No more requests arrive."""

    async def save(self) -> None:
        """Write changes that a leader holds back to the log, unless that takes too long."""


class Parts:
    """Contents of a node by class: the parts of features, and the objects made before them."""

    def __init__(self, *before: object) -> None:
        self._by_class: dict[type, object] = {}
        self._activated: dict[Part, str] = {}
        for made in before:
            self.add(made)

    def add(self, item: object) -> None:
        """Add an object."""
        invariant(type(item) not in self._by_class, "a node has one part of a class", part=type(item))
        self._by_class[type(item)] = item

    def build(self, feature: Feature, context: Context) -> None:
        """Make the part of a feature."""
        part = feature.build(context)
        self.add(part)
        if feature.activated:
            self._activated[part] = feature.name

    def __getitem__(self, kind: type[P]) -> P:
        """Return the object of a class. Raises `KeyError` for a class that is made later."""
        return cast(P, self._by_class[kind])

    def find(self, kind: type[P]) -> P | None:
        """Return the part of a feature that inherits from a class, None if the node has no such feature."""
        return next((part for part in self if isinstance(part, kind)), None)

    def __iter__(self) -> Iterator[Part]:
        """Iterate over the parts of features, in their order."""
        return (item for item in self._by_class.values() if isinstance(item, Part))

    def __reversed__(self) -> Iterator[Part]:
        """Iterate over the parts of features, the last one first."""
        return reversed(list(self))

    def routes(self) -> Mapping[int, Route]:
        """Return the routes of all parts. Every other code is answered 3."""
        routes: dict[int, Route] = {}
        for part in self:
            invariant(routes.keys().isdisjoint(part.routes), "a request code has one handler", part=type(part))
            feature = self._activated.get(part)
            routes.update({code: route._replace(feature=feature) for code, route in part.routes.items()})
        return routes


@dataclass(frozen=True)
class Context:
    """Arguments for making a feature's part.

    `config` is the configuration that the node has started with, `live` the configuration in effect now. `store_host`
    is the numeric address in records and message ids.
    """

    config: BrokerConfig
    live: LiveConfig
    machine: BrokerMachine
    log: Log
    env: Environment
    group: LeadershipView
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
    """One feature: what it replicates, and the function `build`, which makes its part of a node."""

    build: Callable[[Context], Part]
