"""Routes: what a request may have changed at a leader that gives no answer, and which codes are forwarded at all."""

from __future__ import annotations

from served_broker import ServedBroker

from dledger_broker.kernel.routes import Needs
from dledger_remoting.codes import RequestCode


def codes(names: str) -> set[int]:
    return {RequestCode[name] for name in names.split()}


READS = codes(
    """
    QUERY_MESSAGE QUERY_CONSUMER_OFFSET SEARCH_OFFSET_BY_TIMESTAMP GET_MAX_OFFSET GET_MIN_OFFSET
    GET_EARLIEST_MSG_STORETIME VIEW_MESSAGE_BY_ID GET_CONSUMER_LIST_BY_GROUP GET_CONSUMER_CONNECTION_LIST
    GET_CONSUME_STATS GET_ALL_TOPIC_CONFIG GET_TOPIC_CONFIG GET_ALL_SUBSCRIPTION_GROUP_CONFIG
    GET_SUBSCRIPTION_GROUP_CONFIG READ_COMMIT LIST_PINS LIST_QUOTAS PEEK_MESSAGE POLLING_INFO CHANNEL_GONE
    LEASE_HEARD LIST_DELAYED LIST_HALVES
    GET_ALL_MESSAGE_REQUEST_MODE GET_TOPIC_STATS_INFO GET_BROKER_CONSUME_STATS GET_PRODUCER_CONNECTION_LIST
    QUERY_TOPIC_CONSUME_BY_WHO QUERY_CONSUME_TIME_SPAN GET_SYSTEM_TOPIC_LIST_FROM_BROKER GET_TOPICS_OF_GROUP
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS AUTH_GET_USER GET_BROKER_CLUSTER_ACL_INFO GET_BROKER_CLUSTER_ACL_CONFIG
    AUTH_LIST_USER AUTH_GET_ACL AUTH_LIST_ACL QUERY_CONSUME_QUEUE GET_SUBSCRIPTION_OF_GROUP
    """
)
REPLIES = codes("SEND_REPLY_MESSAGE SEND_REPLY_MESSAGE_V2 GET_CONSUMER_RUNNING_INFO")
"""Codes of requests that are handed on to a client, and of which nothing is stored."""
OWN_ANSWERS = codes(
    """
    HEART_BEAT UNREGISTER_CLIENT GET_BROKER_RUNTIME_INFO CHECK_CLIENT_CONFIG DLEDGER_QUEUE_READERS READ_PLAN
    READ_RANGE POP_ROLLBACK GET_ALL_PRODUCER_INFO VIEW_BROKER_STATS_DATA CLEAN_EXPIRED_CONSUMEQUEUE
    CLEAN_UNUSED_TOPIC DELETE_EXPIRED_COMMITLOG GET_BROKER_CONFIG LIST_LEADER_CHANGES
    READ_AUDIT
    """
)
HELD = codes("PULL_MESSAGE LITE_PULL_MESSAGE POP_MESSAGE NOTIFICATION QUERY_ASSIGNMENT")
"""Codes of requests that get a harmless answer if the leader gives none.

A pop that nobody answered only hides messages for a while, so it is answered as a pop that found none. A client that
asks for an assignment keeps the assignment that it has.
"""


def test_forwarded_requests_without_effect_are_the_listed_reads_and_replies(broker: ServedBroker) -> None:
    routes = broker.service.requests._table
    forwarded = {code: route.effect for code, route in routes.items() if route.forwarded}
    assert routes.keys() - forwarded.keys() == OWN_ANSWERS
    assert {code for code, effect in forwarded.items() if effect.unanswered is not None} == HELD
    assert {code for code, effect in forwarded.items() if not effect.changes} == READS | HELD | REPLIES


def test_requests_that_need_a_confirmed_leader_change_nothing(broker: ServedBroker) -> None:
    routes = broker.service.requests._table.values()
    assert not any(route.effect.changes for route in routes if route.needs is Needs.CONFIRMED_LEADER)
    assert all(route.forwarded for route in routes if route.needs is not Needs.NOTHING)
