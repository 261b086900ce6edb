"""Search for nodes whose log begins earlier than this leader's: they have kept messages that this node lacks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dledger.log import Log

MAX_SILENCE_MS: Final = 2_000
"""Time limit in ms: a node that has been silent for longer may be dead, and is not asked."""
PATIENCE_MS: Final = 600_000
"""Time limit in ms for the silence of a voter that may keep earlier messages: until then, no reader skips them."""


def earlier_nodes(log: Log) -> list[str]:
    """Return the ids of these nodes on a leader. The node with the earliest beginning is first."""
    own_start = log.first_position
    earlier = [
        (peer.first_position, peer.node_id)
        for peer in log.status().peers
        if 0 <= peer.first_position < own_start and peer.contact_ms <= MAX_SILENCE_MS
    ]
    return [node_id for _, node_id in sorted(earlier)]


def awaited_node(log: Log, asked: Collection[str] = ()) -> str | None:
    """Return the id of a voter that a leader's readers should wait for, because it may keep messages that the leader
    lacks. None if there is no such voter.

    Its log begins earlier, or it has not reported yet where its log begins. It is none of the `asked` nodes, and has
    been silent for at most `PATIENCE_MS`.
    """
    own_start = log.first_position
    if own_start <= 0:
        return None
    awaited = (
        peer.node_id
        for peer in log.status().peers
        if peer.voter and peer.first_position < own_start and peer.contact_ms <= PATIENCE_MS
    )
    return next((node_id for node_id in awaited if node_id not in asked), None)


def nobody_has_more(log: Log) -> bool:
    """Return whether no log begins before this leader's. All other members have reported that lately."""
    own_start = log.first_position
    return all(peer.first_position >= own_start and peer.contact_ms <= MAX_SILENCE_MS for peer in log.status().peers)
