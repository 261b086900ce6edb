"""Questions to one consumer: what it is doing (307), with the stacks of its threads if asked, and what comes of a
message that it consumes now (309).

Operators ask any node; the leader passes a question on through whichever node the consumer is connected to.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.relay import Relay
from dledger_broker.features.consumer_questions.requests import ConsumerQuestions
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> ConsumerQuestions:
    gossip, relay = context.parts[Gossip], context.parts[Relay]
    return ConsumerQuestions(
        context.machine, context.group, gossip, relay, context.requests, context.config.broker_group
    )


FEATURE: Final = Feature(name="consumer questions", build=_build)
