"""Statistics: what operators' tools ask a broker about its topics, their consumers and their producers.

`topics.py` has the contents of a topic's queues and their consumers, and `progress.py` how far consumers are.
`producers.py` has the producers, `queues.py` the units of queues, and `counting.py` the counts of the last day. Nothing
here is replicated. It is looked up in the state, in tables of clients and in stored messages, or counted since the
node's start.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.readers import Readers
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.statistics.counting import Counting
from dledger_broker.features.statistics.producers import ProducerStatistics
from dledger_broker.features.statistics.progress import GroupProgress
from dledger_broker.features.statistics.queues import QueueContents
from dledger_broker.features.statistics.requests import Statistics
from dledger_broker.features.statistics.topics import TopicStatistics
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> Statistics:
    gossip, requests = context.parts[Gossip], context.requests
    config, machine, env, group = context.config, context.machine, context.env, context.group
    commits = context.parts[OffsetRequests].commits
    counting = Counting(machine, env, context.counters, config.cluster)
    topics = TopicStatistics(machine, env, group, gossip, requests, counting, config)
    progress = GroupProgress(machine, env, gossip, requests, commits, counting, context.parts[Readers], config)
    producers = ProducerStatistics(env, group, gossip, requests)
    queues = QueueContents(machine, group, gossip, requests)
    return Statistics(topics, producers, progress, counting, queues)


FEATURE: Final = Feature(name="statistics", build=_build)
