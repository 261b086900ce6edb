"""Routes: what each request code may do at a leader that gives no answer, and which codes are passed on at all."""

from __future__ import annotations

from served_broker import ServedBroker

from dledger_broker.kernel.routes import Needs
from dledger_remoting.codes import RequestCode

READS = {
    RequestCode.QUERY_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.READ_COMMIT,
    RequestCode.LIST_PINS,
    RequestCode.LIST_QUOTAS,
    RequestCode.PEEK_MESSAGE,
    RequestCode.POLLING_INFO,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_TOPICS_OF_GROUP,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.AUTH_GET_USER,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.GET_SUBSCRIPTION_OF_GROUP,
}
REPLIES = {
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
}
"""They are handed on to a client, and nothing of them is stored."""
OWN_ANSWERS = {
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.DLEDGER_QUEUE_READERS,
    RequestCode.READ_PLAN,
    RequestCode.READ_RANGE,
    RequestCode.POP_ROLLBACK,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.GET_BROKER_CONFIG,
}
HELD = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.QUERY_ASSIGNMENT,
}
"""A pop that nobody answered hides messages for a while, and no more: it is answered as one that has found none.

A client that asks for an assignment goes on with what it has.
"""


def test_what_only_reads_is_of_no_unknown_outcome(broker: ServedBroker) -> None:
    routes = broker.service.requests._table
    forwarded = {code: route.effect for code, route in routes.items() if route.forwarded}
    assert routes.keys() - forwarded.keys() == OWN_ANSWERS
    assert {code for code, effect in forwarded.items() if effect.unanswered is not None} == HELD
    assert {code for code, effect in forwarded.items() if not effect.changes} == READS | HELD | REPLIES


def test_what_needs_a_confirmed_leader_changes_nothing(broker: ServedBroker) -> None:
    routes = broker.service.requests._table.values()
    assert not any(route.effect.changes for route in routes if route.needs is Needs.CONFIRMED_LEADER)
    assert all(route.forwarded for route in routes if route.needs is not Needs.NOTHING)
