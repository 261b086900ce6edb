"""Questions that a single consumer answers.

A consumer reports its state (307), with the stacks of its threads if requested. It can be ordered to consume a message
now and report the result (309). Operators send the request to any node. The leader passes the request on through the
node to which the consumer is connected.
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
