"""Filters of gRPC clients: tags (`a || b`, `*` for all) or SQL92, as subscriptions of our client."""

from __future__ import annotations

from dledger_client.errors import ClientError
from dledger_client.subscriptions import Sql, Subscription, subscription
from dledger_remoting.filters.tags import SUBSCRIBE_ALL

from .answers import Refusal
from .definition import messaging_pb2 as pb


def subscription_of(topic: str, wanted: pb.FilterExpression) -> Subscription:
    """Return the subscription to a topic. Raises `Refusal` for a filter that cannot be read."""
    expression = wanted.expression or SUBSCRIBE_ALL
    try:
        return subscription(topic, Sql(expression) if wanted.type == pb.SQL else expression, 0)
    except ClientError as error:
        raise Refusal(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
