"""Replies: what a consumer answers to a message goes to the client that sent it and waits (324, 325 → 326).

The leader pushes a reply through whichever node the requester is connected to. It stores none: the requester waits for
it only so long, and asks again.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.relay import Relay
from dledger_broker.features.replies.requests import Replies
from dledger_broker.kernel.parts import Context, Feature
from dledger_remoting.topics import reply_topic


def _build(context: Context) -> Replies:
    relay = context.parts[Relay]
    return Replies(
        context.machine,
        context.requests,
        relay,
        context.live,
        context.env,
        context.store_host,
        context.access,
        reply_topic(context.config.cluster),
    )


FEATURE: Final = Feature(name="replies", build=_build)
