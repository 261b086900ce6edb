"""Counts of all that a node's parts have on its way or have waiting, by looking at them: no part is forgotten."""

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
        "answers",
        "asked",
        "checked",
        "collected",
        "deleting",
        "flights",
        "gathered",
        "held",
        "in_flight",
        "items",
        "made",
        "on_their_way",
        "opening",
        "pending",
        "positions",
        "proposed",
        "reads",
        "records",
        "tasks",
        "units",
        "waiters",
        "waiting",
    }
)
"""What parts call that, without the underscore. Rows of tables and of the time index have such names, too: they are
state.
"""


class NodeWaits:
    """Of one node and one of its clients."""

    def __init__(self, broker: ServedBroker, client: FakeClient) -> None:
        self._client = client
        self._places = list(_places(broker.service))

    def counts(self) -> dict[str, int]:
        """How many requests, units and callbacks there are, by where they are kept; without places that are empty."""
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
