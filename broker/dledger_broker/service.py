"""Service of a node without its ports: makes the parts and joins them to the state machine and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dledger.environment import Environment
from dledger.log import Log
from dledger.statemachine import Leadership
from dledger_broker.clients.channels import Channels
from dledger_broker.clients.gossip import GOSSIP_CHANNEL, Gossip
from dledger_broker.clients.readers import Readers
from dledger_broker.clients.relay import RELAY_CHANNEL, Relay
from dledger_broker.clients.tables import ClientChannel
from dledger_broker.clients.topic_routes import TopicRoutes
from dledger_broker.config import BrokerConfig
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.frontend.dispatch import Dispatcher
from dledger_broker.frontend.forwarding import FORWARD_CHANNEL, Forwarder
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.parts import Context, Feature, Parts
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Origin
from dledger_broker.kernel.roles import Roles
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.hosts import HostAddress

_logger: Final = logging.getLogger(__name__)


class LostChannel(ClientChannel, Origin, Protocol):
    """The connection of a client that has closed."""


class BrokerService(EventListener):
    """Everything between the client port and the log. Call `start` once the node is started, `settle` while it still
    runs.

    `features` are the features of `machine`. `store_host` is the numeric address in records and message ids.
    """

    def __init__(
        self,
        config: BrokerConfig,
        features: Sequence[Feature],
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        group: LeadershipView,
        counters: BrokerCounters,
        store_host: HostAddress,
        channels: Channels,
    ) -> None:
        self.config = config
        self.machine = machine
        self.group = group
        self.live = LiveConfig(config)
        self.access = access = Access(env.now)
        self.requests = Dispatcher(group, counters, log, env, config.max_frame_bytes, machine.activation, access)
        machine.keys.give_way = self.requests.give_way
        self.forwarder = Forwarder(env, group, config, counters, self.requests)
        self.gossip = Gossip(env, group, config.peers, machine.advertised_kinds, machine.learn_kinds)
        self.announcements = Announcements(env, machine, counters)
        self.relay = Relay(env, group.node_id, self.gossip.local, self.gossip.merged, config, counters, access)
        self.topic_routes = TopicRoutes()
        names = NamesMade(machine, self.live, access, counters)
        self.parts = Parts(self.gossip, self.relay, channels, Readers(), self.topic_routes, names)
        self.writer = LogWriter(machine, log, env, store_host)
        self.clock = GroupClock(machine, env, counters, config.forward_hold_ms / 1000)
        roles = Roles(machine, log, group, config.broker_group, counters)
        context = Context(
            config,
            self.live,
            machine,
            log,
            env,
            group,
            counters,
            self.requests,
            self.announcements,
            roles,
            store_host,
            self.writer,
            self.clock,
            self.parts,
            access,
        )
        for feature in features:
            self.parts.build(feature, context)
        for part in self.parts:
            part.meet(self.parts)
        self.requests.audit.subject_states = {
            code: read_state for part in self.parts for code, read_state in part.audited.items()
        }
        # Two features are named here. Nearly all requests are sends and pulls. The dispatcher passes them on a read at
        # a time, without a look-up of the route for each.
        self._pulls = self.parts[PullRequests]
        self._pops = self.parts[PopRequests]
        self.requests.connect(self.forwarder, self.parts[SendRequests], self._pulls, self.relay, self.parts.routes())
        self._log = log
        self._env = env
        self._commit_push_due = False
        machine.events.add(names, self.clock, *self.parts, self, self.forwarder)

    def start(self) -> None:
        """Begin to exchange requests with the other nodes, to index, and to run the parts."""
        self.forwarder.attach(self._log.request_channel(FORWARD_CHANNEL, self.forwarder.on_request))
        self.gossip.start(self._log.request_channel(GOSSIP_CHANNEL, self.gossip.on_request))
        self.relay.attach(self._log.request_channel(RELAY_CHANNEL, self.relay.on_request))
        self._log.on_handover(self.machine.hand_over)
        self.machine.start()
        self.machine.checkpointer.remove_leftovers()
        for part in self.parts:
            part.start()
        jobs = [self.clock, *(job for part in self.parts for job in part.jobs)]
        self.machine.jobs.open(jobs, self._log, self.writer)

    def channel_lost(self, channel: LostChannel) -> None:
        """Forget a client's connection that has closed."""
        self.requests.channel_lost(channel.key)
        self._pops.gone.lost(channel)
        self.gossip.local.channel_lost(channel)
        self.relay.channel_lost(channel)

    def release(self) -> None:
        """Answer the requests that are held, and hold no more."""
        self.clock.release()
        for part in self.parts:
            part.release()

    async def settle(self, close_intake: Callable[[], None]) -> None:
        """Answer the requests under way. Later requests are answered 14. After that, a leader's log has all offset
        commits.

        `close_intake` stops reading from this node's clients, and handles the requests that have been read by then.
        Requests of clients are read until shortly before, because a majority may take a while for the commits that are
        held back.
        """
        self.gossip.stop()
        self.machine.jobs.close()
        for part in reversed(self.parts):
            part.stop()
        self.release()
        self.relay.close()
        self.forwarder.close()
        await self.requests.close()
        for part in self.parts:
            part.close()
        await self._save()
        close_intake()
        self.requests.finish_reads()
        await self._save()

    async def part(self) -> None:
        """Refuse further requests of the other nodes, which keep them for the next leader. Save what they have
        forwarded.

        This is the last step before the node is stopped.
        """
        self.forwarder.refuse()
        await self._save()

    async def _save(self) -> None:
        for part in self.parts:
            await part.save()

    def new_leadership(self, leadership: Leadership) -> None:
        self.group.on_leadership(leadership)
        if not self.group.ready:
            return
        _logger.info("node=%s event=leading term=%d", self.config.node_id, leadership.term)

    def messages_arrived(self, queues: Sequence[QueueState]) -> None:
        """Send the commit to the other nodes if clients wait there. Those that wait here have been woken."""
        _ = queues
        if self.group.ready and self.gossip.followers_hold_pulls and not self._commit_push_due:
            self._commit_push_due = True
            self._env.call_soon(self._push_commit)

    def _push_commit(self) -> None:
        self._commit_push_due = False
        if self.group.ready:
            self._log.broadcast_commit()
