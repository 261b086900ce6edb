"""Replies: a consumer's reply to a message goes to the client that sent the message and waits (324, 325 → 326).

The leader pushes a reply through the node that the requester is connected to. It stores no reply: the requester waits
for a limited time, and then repeats its request.
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
