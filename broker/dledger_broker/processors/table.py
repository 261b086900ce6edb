"""Table of the request codes that this broker understands, their handlers, and the nodes that may handle them."""

from __future__ import annotations

from collections.abc import Mapping

from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.requests import OffsetProcessor
from dledger_broker.features.pins.requests import PinProcessor
from dledger_broker.features.ranges.requests import RangeProcessor
from dledger_broker.features.sending.send import SendProcessor
from dledger_broker.features.topics.requests import TopicRequests
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.processors.consumers import ConsumerProcessor
from dledger_broker.processors.membership import MembershipProcessor
from dledger_broker.processors.pull import HELD, PullProcessor
from dledger_broker.processors.queries import QueryProcessor
from dledger_broker.processors.runtime import RuntimeProcessor
from dledger_remoting.codes import RequestCode


def routes(
    send: SendProcessor,
    pull: PullProcessor,
    offsets: OffsetProcessor,
    membership: MembershipProcessor,
    consumers: ConsumerProcessor,
    topics: TopicRequests,
    groups: GroupRequests,
    queries: QueryProcessor,
    ranges: RangeProcessor,
    pins: PinProcessor,
    runtime: RuntimeProcessor,
) -> Mapping[int, Route]:
    """All codes; every other one is answered 3."""
    return {
        RequestCode.SEND_MESSAGE: Route(send.handle, Needs.LEADER, CHANGES),
        RequestCode.SEND_MESSAGE_V2: Route(send.handle, Needs.LEADER, CHANGES),
        RequestCode.SEND_BATCH_MESSAGE: Route(send.handle, Needs.LEADER, CHANGES),
        RequestCode.PULL_MESSAGE: Route(pull.handle, Needs.NOTHING, HELD),
        RequestCode.LITE_PULL_MESSAGE: Route(pull.handle, Needs.NOTHING, HELD),
        RequestCode.QUERY_CONSUMER_OFFSET: Route(offsets.query, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.UPDATE_CONSUMER_OFFSET: Route(offsets.update, Needs.LEADER, CHANGES),
        RequestCode.GET_BROKER_RUNTIME_INFO: Route(runtime.describe, Needs.NOTHING, NO_EFFECT, forwarded=False),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Route(offsets.search, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.GET_MAX_OFFSET: Route(offsets.maximum, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.GET_MIN_OFFSET: Route(offsets.minimum, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.GET_EARLIEST_MSG_STORETIME: Route(offsets.earliest_time, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.HEART_BEAT: Route(membership.heartbeat, Needs.NOTHING, CHANGES, forwarded=False),
        RequestCode.UNREGISTER_CLIENT: Route(membership.unregister, Needs.NOTHING, CHANGES, forwarded=False),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: Route(consumers.client_ids, Needs.LEADER, NO_EFFECT),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: Route(consumers.connections, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.GET_CONSUME_STATS: Route(consumers.progress, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.DLEDGER_QUEUE_READERS: Route(consumers.readers, Needs.NOTHING, NO_EFFECT, forwarded=False),
        RequestCode.UPDATE_AND_CREATE_TOPIC: Route(topics.put_topic, Needs.LEADER, CHANGES),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Route(topics.put_topics, Needs.LEADER, CHANGES),
        RequestCode.DELETE_TOPIC_IN_BROKER: Route(topics.delete_topic, Needs.LEADER, CHANGES),
        RequestCode.GET_TOPIC_CONFIG: Route(topics.topic, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.GET_ALL_TOPIC_CONFIG: Route(topics.all_topics, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: Route(groups.put_group, Needs.LEADER, CHANGES),
        RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: Route(groups.all_groups, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG: Route(groups.one_group, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.DELETE_SUBSCRIPTION_GROUP: Route(groups.delete_group, Needs.LEADER, CHANGES),
        RequestCode.QUERY_MESSAGE: Route(queries.by_key, Needs.NOTHING, NO_EFFECT),
        RequestCode.VIEW_MESSAGE_BY_ID: Route(queries.by_offset, Needs.NOTHING, NO_EFFECT),
        RequestCode.READ_PLAN: Route(ranges.plan, Needs.NOTHING, NO_EFFECT, forwarded=False),
        RequestCode.READ_RANGE: Route(ranges.read, Needs.NOTHING, NO_EFFECT, forwarded=False),
        RequestCode.READ_COMMIT: Route(ranges.commit, Needs.CONFIRMED_LEADER, NO_EFFECT),
        RequestCode.PIN_LOG: Route(pins.pin, Needs.LEADER, CHANGES),
        RequestCode.UNPIN_LOG: Route(pins.unpin, Needs.LEADER, CHANGES),
        RequestCode.LIST_PINS: Route(pins.list, Needs.CONFIRMED_LEADER, NO_EFFECT),
    }
