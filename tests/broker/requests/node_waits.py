"""Counts of everything that a node's parts hold in flight or waiting.

The counts come from the attributes of the parts themselves, so that no part is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from served_broker import FakeClient, ServedBroker

from dledger_broker.features.delay.table import Pending
from dledger_broker.kernel.tables import Table
from dledger_broker.views.soonrows import SoonRows

NAMES: Final = frozenset(
    {
        *("answers", "asked", "checked", "collected", "deleting", "due_queries", "flights", "gathered", "held"),
        *("in_flight", "items", "made", "opening", "pending", "pending_calls", "positions", "proposed", "reads"),
        *("records", "tasks", "units", "waiters", "waiting", "waiting_queries"),
    }
)
"""Names of the attributes in which parts hold such things, without the underscore.

Rows of tables and of the time index have such names too, but they are state.
"""


class NodeWaits:
    """Counts of one node and one of its clients."""

    def __init__(self, broker: ServedBroker, client: FakeClient) -> None:
        self._client = client
        self._places = list(_places(broker.service))

    def counts(self) -> dict[str, int]:
        """Return the numbers of requests, units and callbacks by the place that holds them, without empty places."""
        sizes = {f"{type(owner).__name__}.{name}": _size(getattr(owner, name)) for owner, name in self._places}
        sizes |= {"channel.in_flight": self._client.in_flight, "channel.held": self._client.held}
        return {place: size for place, size in sizes.items() if size}


def _places(root: object) -> Iterator[tuple[object, str]]:
    seen: set[int] = set()
    left: deque[object] = deque([root])
    while left:
        owner = left.popleft()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name, value in _attributes(owner):
            if name.removeprefix("_") in NAMES and not isinstance(owner, Table | SoonRows):
                yield owner, name
            left.extend(_parts(value))


def _size(value: object) -> int:
    if isinstance(value, Pending):
        return value.rows
    if isinstance(value, list | dict | set | deque):
        return len(value)
    return value if isinstance(value, int) else 0


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    yield from getattr(owner, "__dict__", {}).items()
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(owner, name):
                yield name, getattr(owner, name)


def _parts(value: object) -> list[object]:
    values: list[object] = list(value) if isinstance(value, list | tuple) else [value]
    if isinstance(value, dict):
        values = list(value.values())
    return [one for one in values if type(one).__module__.startswith("dledger_broker.")]
