"""Names that a registration may bring: as long as brokers have them, and no longer.

`max_nodes` and `max_routes` bound how many there are. A header holds 16 MiB, and so does a name in it; who registers
might be anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.topics import MAX_DERIVED_TOPIC_CHARS, TopicConfig

MAX_NAME_CHARS: Final = MAX_DERIVED_TOPIC_CHARS
"""Of a topic, and of a broker group, a cluster and a node: brokers have topics of these names, or of the same form."""
MAX_ADDRESS_CHARS: Final = 259
"""253 of the longest host name, a colon, and five digits."""
SHOWN_CHARS: Final = 32


def fault_of_header(header: RegisterBrokerHeader) -> str:
    """Which name or address of a node is too long, and what is the limit; empty if none is."""
    names = {"broker name": header.broker_name, "cluster name": header.cluster_name, "node id": header.node_id}
    addresses = {
        "broker address": header.broker_addr,
        "HA address": header.ha_server_addr,
        "alias address": header.alias_addr,
    }
    faults = (
        *(_fault(what, name, MAX_NAME_CHARS) for what, name in names.items()),
        *(_fault(what, address, MAX_ADDRESS_CHARS) for what, address in addresses.items()),
    )
    return next(filter(None, faults), "")


def fault_of_topics(topics: dict[str, TopicConfig]) -> str:
    """Which name of a topic is too long, and what is the limit; empty if none is."""
    return next(filter(None, (_fault("topic name", name, MAX_NAME_CHARS) for name in _names(topics))), "")


def shown(text: str) -> str:
    """A name as a line of the log or an answer may have it."""
    return text if len(text) <= MAX_ADDRESS_CHARS else f"{text[:SHOWN_CHARS]}..."


def _names(topics: dict[str, TopicConfig]) -> Iterator[str]:
    """Each topic has its name twice: as a key, and in its configuration."""
    yield from topics
    yield from (config.topic_name for config in topics.values())


def _fault(what: str, text: str | None, limit: int) -> str:
    if text is None or len(text) <= limit:
        return ""
    return f"the {what} {text[:SHOWN_CHARS]}... has {len(text)} characters, the limit is {limit}"
