"""Eviction of connections that have proven nothing yet, when a port has too many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeVar

T = TypeVar("T")


def oldest_of_busiest_host(connections: Collection[T], host_of: Callable[[T], str]) -> T:
    """The first connection of the host that has most, of at least one that stand in the order in which they came.

    A host that floods a port displaces its own connections and nobody else's; on a host that is shared with it, a
    client has until as many others have come as the port takes.
    """
    counts = Counter(map(host_of, connections))
    most = max(counts.values())
    return next(one for one in connections if counts[host_of(one)] == most)
