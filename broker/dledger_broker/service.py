"""Service of a node, without its ports: the state machine, the handlers of requests, retention, joined to the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dledger.environment import Environment
from dledger.log import Log
from dledger.statemachine import Leadership
from dledger_broker.clients.gossip import GOSSIP_CHANNEL
from dledger_broker.clients.tables import ClientChannel
from dledger_broker.config import BrokerConfig
from dledger_broker.features.retention.job import Retention
from dledger_broker.features.retention.policy import policy_of
from dledger_broker.founding import Founding
from dledger_broker.frontend.forwarding import FORWARD_CHANNEL
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.processors.assembly import assemble
from dledger_remoting.hosts import HostAddress

_logger = logging.getLogger(__name__)


class BrokerService:
    """Everything between the client port and the log; `start` once the node is started, `close` while it still runs.

    `store_host` is the numeric address that records and message ids carry.
    """

    def __init__(
        self,
        config: BrokerConfig,
        machine: BrokerMachine,
        node: Log,
        env: Environment,
        group: Group,
        counters: BrokerCounters,
        store_host: HostAddress,
        connections: Callable[[], Iterable[ClientChannel]],
    ) -> None:
        self.config = config
        self.machine = machine
        self.group = group
        self.processors = assemble(config, machine, node, env, group, counters, store_host, connections)
        self.retention = Retention(machine, node, env, self.processors.pins, policy_of(config), counters)
        Founding(machine, env, config)
        self._node = node
        self._env = env
        self._commit_push_due = False
        machine.on_leadership_changed.append(self._on_leadership)
        machine.on_arrival = self._on_arrival

    def start(self) -> None:
        """Exchange requests with the other nodes, index, retain."""
        forwarder, gossip = self.processors.forwarder, self.processors.gossip
        forwarder.attach(self._node.request_channel(FORWARD_CHANNEL, forwarder.on_request))
        gossip.start(self._node.request_channel(GOSSIP_CHANNEL, gossip.on_request))
        self._node.on_handover(self.machine.hand_over)
        self.machine.start()
        self.machine.checkpointer.remove_leftovers()
        self.retention.start()

    async def settle(self, close_intake: Callable[[], None]) -> None:
        """Answer what is under way; later requests are answered 14. A leader's log has all commits by then.

        `close_intake` has this node's clients heard no more, and handles what has been read by then. Until shortly
        before that they are heard: a majority may take a while for the commits that are held back.
        """
        self.processors.gossip.stop()
        self.retention.stop()
        self.processors.pulls.stop_holding()
        self.processors.forwarder.close()
        await self.processors.requests.close()
        self.processors.sends.close()
        await self.processors.commits.flush()
        close_intake()
        await self.processors.commits.flush()

    async def part(self) -> None:
        """Take nothing more from the other nodes, who keep it for the next leader, and have what they passed on in the
        log: the last thing before the node is stopped.
        """
        self.processors.forwarder.refuse()
        await self.processors.commits.flush()

    def _on_leadership(self, leadership: Leadership) -> None:
        self.group.on_leadership(leadership)
        if not self.group.ready:
            return
        _logger.info("node=%s event=leading term=%d", self.config.node_id, leadership.term)

    def _on_arrival(self, queues: list[QueueState]) -> None:
        """Messages can be read: wake this node's long polls, and let nodes where others wait know of the commit."""
        self.processors.pulls.held.arrived(queues)
        if self.group.ready and self.processors.gossip.followers_hold_pulls and not self._commit_push_due:
            self._commit_push_due = True
            self._env.call_soon(self._push_commit)

    def _push_commit(self) -> None:
        self._commit_push_due = False
        if self.group.ready:
            self._node.broadcast_commit()
