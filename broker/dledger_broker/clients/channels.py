"""Channels of the clients that are connected to this node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dledger_broker.clients.tables import ClientChannel


class Channels:
    """The channels that are open on this node. `opened` is the collection that holds them, and other code keeps it up
    to date.
    """

    def __init__(self, opened: Iterable[ClientChannel] = ()) -> None:
        self._opened = opened

    def __iter__(self) -> Iterator[ClientChannel]:
        """Iterate over the channels that are open now."""
        return iter(self._opened)
