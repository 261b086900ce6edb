"""Limits on the length of names and addresses in a registration. Brokers allow no longer names either.

Without these limits any client could register names of up to 16 MiB, the maximum size of a header. `max_nodes` and
`max_routes` only bound the number of names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.topics import MAX_DERIVED_TOPIC_CHARS, TopicConfig

MAX_NAME_CHARS: Final = MAX_DERIVED_TOPIC_CHARS
"""Maximum length in characters of the name of a topic, broker group, cluster or node.

Brokers have topics with these names, or with names of the same form.
"""
MAX_ADDRESS_CHARS: Final = 259
"""Maximum length of an address in characters: 253 of the longest host name, a colon, and five digits."""
SHOWN_CHARS: Final = 32


def fault_of_header(header: RegisterBrokerHeader) -> str:
    """Describe the first name or address of a node that is too long, with the limit. Empty if none is."""
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
    """Describe the first topic name that is too long, with the limit. Empty if none is."""
    return next(filter(None, (_fault("topic name", name, MAX_NAME_CHARS) for name in _names(topics))), "")


def shown(text: str) -> str:
    """Return a name for a line of the log or an answer. It is shortened if it is longer than an address may be."""
    return text if len(text) <= MAX_ADDRESS_CHARS else f"{text[:SHOWN_CHARS]}..."


def _names(topics: dict[str, TopicConfig]) -> Iterator[str]:
    """Yield the names of the topics. Each topic has its name twice: as a key, and in its configuration."""
    yield from topics
    yield from (config.topic_name for config in topics.values())


def _fault(what: str, text: str | None, limit: int) -> str:
    if text is None or len(text) <= limit:
        return ""
    return f"the {what} {text[:SHOWN_CHARS]}... has {len(text)} characters, the limit is {limit}"
