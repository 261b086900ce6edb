"""Routes of statistics, and of requests to clean at once, which have nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_broker.features.statistics.counting import Counting
from dledger_broker.features.statistics.producers import ProducerStatistics
from dledger_broker.features.statistics.progress import GroupProgress
from dledger_broker.features.statistics.queues import QueueContents
from dledger_broker.features.statistics.topics import TopicStatistics
from dledger_broker.kernel import rights
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_remoting.codes import RequestCode

_CLUSTER: Final = (rights.cluster(Action.GET),)


class Statistics(Part):
    """Handler of statistics: of the group on the leader, and of a node's connections and counts on that node."""

    def __init__(
        self,
        topics: TopicStatistics,
        producers: ProducerStatistics,
        progress: GroupProgress,
        counting: Counting,
        queues: QueueContents,
    ) -> None:
        self._topics = topics
        self._producers = producers
        self._progress = progress
        self._counting = counting
        self._queues = queues

    @property
    def routes(self) -> Mapping[int, Route]:
        topics, producers, progress = self._topics, self._producers, self._progress
        cleaning = Route(
            clean_at_once, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=(rights.cluster(Action.UPDATE),)
        )
        return {
            RequestCode.GET_TOPIC_STATS_INFO: Route(
                topics.ranges, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.topic("topic", Action.GET),)
            ),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Route(
                topics.consumers, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.topic("topic", Action.GET),)
            ),
            RequestCode.QUERY_CONSUME_TIME_SPAN: Route(
                topics.time_spans,
                Needs.CONFIRMED_LEADER,
                NO_EFFECT,
                rights=(rights.topic("topic", Action.GET), rights.group("group", Action.GET)),
            ),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Route(
                topics.system_topics, Needs.LEADER, NO_EFFECT, rights=_CLUSTER
            ),
            RequestCode.GET_TOPICS_OF_GROUP: Route(
                topics.topics_of_group, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.group("group", Action.GET),)
            ),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: Route(
                producers.connections, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_CLUSTER
            ),
            RequestCode.GET_ALL_PRODUCER_INFO: Route(
                producers.all, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=_CLUSTER
            ),
            RequestCode.GET_CONSUME_STATS: Route(
                progress.of_group,
                Needs.CONFIRMED_LEADER,
                NO_EFFECT,
                rights=(rights.group("consumerGroup", Action.GET), rights.topic("topic", Action.GET, optional=True)),
            ),
            RequestCode.GET_BROKER_CONSUME_STATS: Route(
                progress.of_all_groups, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_CLUSTER
            ),
            RequestCode.VIEW_BROKER_STATS_DATA: Route(
                self._counting.answer, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=_CLUSTER
            ),
            RequestCode.QUERY_CONSUME_QUEUE: Route(
                self._queues.units,
                Needs.CONFIRMED_LEADER,
                NO_EFFECT,
                rights=(rights.topic("topic", Action.GET), rights.group("consumerGroup", Action.GET, optional=True)),
            ),
            RequestCode.GET_SUBSCRIPTION_OF_GROUP: Route(
                self._queues.subscription,
                Needs.CONFIRMED_LEADER,
                NO_EFFECT,
                rights=(rights.group("group", Action.GET), rights.topic("topic", Action.GET)),
            ),
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: cleaning,
            RequestCode.CLEAN_UNUSED_TOPIC: cleaning,
            RequestCode.DELETE_EXPIRED_COMMITLOG: cleaning,
        }

    def start(self) -> None:
        self._counting.start()

    def stop(self) -> None:
        self._counting.stop()


def clean_at_once(request: Request) -> None:
    """Answer 306, 316 and 329 without doing anything.

    The leader applies retention every ten seconds anyway, and files of queues are removed with their log or topic.
    """
    request.respond()
