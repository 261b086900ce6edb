"""Topics: requests of clients and users about topics, and the topics that a broker has from the start.

The table of topics belongs to the kernel.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.topics.requests import TopicRequests
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> TopicRequests:
    names = context.parts[NamesMade]
    return TopicRequests(context.machine, context.group, context.announcements, context.requests, names)


FEATURE: Final = Feature(name="topics", build=_build)
