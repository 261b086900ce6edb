"""Topics: what clients and users ask about them, and those that a broker has from the start.

Their table is the kernel's.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.topics.requests import TopicRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> TopicRequests:
    return TopicRequests(context.machine, context.group, context.announcements, context.requests)


FEATURE: Final = Feature(name="topics", build=_build)
