"""All processors of a node, made and joined; nothing runs yet."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dledger.environment import Environment
from dledger.log import Log
from dledger_broker.announcements import Announcements
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.tables import ClientChannel
from dledger_broker.config import BrokerConfig
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.offsets.requests import OffsetProcessor
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.requests import PinProcessor
from dledger_broker.features.ranges.pace import RangePace
from dledger_broker.features.ranges.requests import RangeProcessor
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.send import SendProcessor
from dledger_broker.features.sending.targets import SendTargets
from dledger_broker.features.topics.requests import TopicRequests
from dledger_broker.frontend.dispatch import Dispatcher
from dledger_broker.frontend.forwarding import Forwarder
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.roles import Roles
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.processors.consumers import ConsumerProcessor
from dledger_broker.processors.membership import MembershipProcessor
from dledger_broker.processors.pull import PullProcessor
from dledger_broker.processors.queries import QueryProcessor
from dledger_broker.processors.runtime import RuntimeProcessor
from dledger_broker.processors.table import routes
from dledger_remoting.hosts import HostAddress
from dledger_remoting.ids import UniqueKeyGenerator


@dataclass(frozen=True, slots=True)
class Processors:
    """What a broker keeps of them."""

    requests: Dispatcher
    groups: GroupProposals
    forwarder: Forwarder
    gossip: Gossip
    sends: SendProcessor
    pulls: PullProcessor
    offsets: OffsetProcessor
    commits: OffsetCommits
    pins: ProposedPins
    runtime: RuntimeProcessor
    announcements: Announcements


def assemble(
    config: BrokerConfig,
    machine: BrokerMachine,
    log: Log,
    env: Environment,
    group: Group,
    counters: BrokerCounters,
    store_host: HostAddress,
    connections: Callable[[], Iterable[ClientChannel]],
) -> Processors:
    """Make everything that handles requests. `store_host` is the numeric address that records and message ids carry."""
    requests = Dispatcher(group, counters, log, env.now, config.max_frame_bytes)
    groups = GroupProposals(machine)
    forwarder = Forwarder(env, group, config, counters, requests)
    membership = MembershipProcessor(machine, env, group, config, connections, groups)
    gossip = Gossip(
        env,
        group,
        config.peers,
        machine.commands.kinds,
        notify=membership.notify,
        joined=membership.ensure_all,
        learned=machine.learn_features,
        holds_pulls=lambda: len(pulls.held) > 0,
    )
    keys = UniqueKeyGenerator(store_host.ip, os.getpid(), secrets.randbits(32))
    announcements = Announcements(env, lambda: machine.state.topic_table.version)
    targets = SendTargets(machine, group, config, announcements, requests, groups)
    idempotent = IdempotentSends(machine, log, env, config, counters, requests)
    writer = LogWriter(machine, log, env, store_host)
    sends = SendProcessor(machine, writer, env, config, counters, targets, store_host, keys, requests, idempotent)
    commits = OffsetCommits(machine, env, config.offset_flush_ms)
    offsets = OffsetProcessor(machine, env, group, requests, groups, commits)
    roles = Roles(machine, log, group, config.broker_group, counters)
    pulls = PullProcessor(
        machine, log, env, group, config, counters, requests, gossip, offsets, gossip.hold_changed, roles, groups
    )
    membership.connect(gossip, pulls.held.release_groups)
    consumers = ConsumerProcessor(machine, env, group, gossip, pulls.readers, requests, config.broker_group, commits)
    topics = TopicRequests(machine, group, announcements, requests)
    group_requests = GroupRequests(machine, group, requests, groups)
    queries = QueryProcessor(machine, requests)
    proposed_pins = ProposedPins(machine)
    pins = PinProcessor(machine, proposed_pins, env, group, requests)
    pace = RangePace(env, lambda: machine.applied_position, config.busy_range_bytes_per_s)
    ranges = RangeProcessor(machine, log, env, group, config.broker_group, counters, requests, pins, roles, pace)
    runtime = RuntimeProcessor(machine, log, env, group, config, counters)
    handlers = routes(
        sends, pulls, offsets, membership, consumers, topics, group_requests, queries, ranges, pins, runtime
    )
    requests.connect(forwarder, sends, pulls, handlers)
    return Processors(
        requests, groups, forwarder, gossip, sends, pulls, offsets, commits, proposed_pins, runtime, announcements
    )
