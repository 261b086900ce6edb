"""Members of consumer groups: the leader creates their groups, and every node notifies its members (40, 20002)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.tables import ClientChannel, ClientRow
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.retry_topics import retry_topic_config
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.trying_again import RetryTimer
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import NoPermission
from dledger_remoting.headers import ConsumerGroupHeader, encode_ext
from dledger_remoting.heartbeat import ConsumerData, ConsumeType
from dledger_remoting.topics import SubscriptionGroupConfig, is_system_group, retry_topic

MADE_S: Final = 1.0
"""Time limit in seconds for a heartbeat at a follower to wait until the leader has made groups and retry topics.

The leader may refuse to make them.
"""
LEADER_CHANGED_CODE: Final = 20002
"""Code of a oneway request to clients: the leader of the broker group has changed.

RocketMQ does not have this code. Clients ask for it with the ext field `dledgerNotify=true`. Its ext fields are `term`,
`leaderAddr` and `brokerName`.
"""


class GroupMembers:
    """Creator of missing groups and retry topics, and notifier of members. Heartbeats and gossip call it."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: LeadershipView,
        live: LiveConfig,
        channels: Iterable[ClientChannel],
        groups: GroupProposals,
        gossip: Gossip,
    ) -> None:
        self._machine = machine
        self._env = env
        self._group = group
        self._live = live
        self._channels = channels
        self._groups = groups
        self._gossip = gossip
        self._last_announced: tuple[int, str] | None = None
        self._retry_timer = RetryTimer(env, self._retry_ensure)
        self._waiting: dict[Callable[[], None], Sequence[ConsumerData]] = {}
        gossip.attach_members(self)

    def ensure_all(self, rows: Iterable[ClientRow]) -> None:
        """Create missing groups and retry topics of these clients. Only the leader calls this."""
        for row in rows:
            self.ensure(row.consumers, _ignore_completion)

    def ensure(
        self, consumers: Iterable[ConsumerData], done: Callable[[], None], request: Request | None = None
    ) -> None:
        """Create missing groups and their retry topics, then call `done`. A failure is tried again later.

        `done` is called after a failure, too. `request` is the heartbeat that names the groups, if this node received
        it.
        """
        waiting = 1

        def finished(error: object = None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                self._retry_timer.schedule()
            if waiting == 0:
                done()

        for consumer in consumers:
            if self._lacks_group_or_topic(consumer):
                waiting += 1
                self._ensure_one(consumer, finished, request)
        finished()

    def _retry_ensure(self) -> None:
        """Create what is still missing after a refusal. Gossip reports clients of other nodes only when they change."""
        if self._group.ready:
            self.ensure_all(self._gossip.merged.rows())

    def when_made(self, consumers: Sequence[ConsumerData], done: Callable[[], None]) -> None:
        """Call `done` once these groups and their retry topics exist on this follower, or `MADE_S` have passed.

        If the heartbeat were answered earlier, the client's next request could name a group or retry topic that does
        not exist yet, and be refused.
        """
        if not any(map(self._lacks_group_or_topic, consumers)):
            done()
            return
        self._waiting[done] = consumers
        self._env.call_later(MADE_S, partial(self._end_wait, done))

    def check_waiting(self) -> None:
        """End the waits for groups and topics that are there now."""
        for done, consumers in list(self._waiting.items()):
            if not any(map(self._lacks_group_or_topic, consumers)):
                self._end_wait(done)

    def _end_wait(self, done: Callable[[], None]) -> None:
        if self._waiting.pop(done, None) is not None:
            done()

    def _lacks_group_or_topic(self, consumer: ConsumerData) -> bool:
        name = consumer.group_name
        if is_system_group(name):
            return False
        state = self._machine.state
        if name not in state.table(GROUPS).by_name:
            return self._live.config.auto_create_group
        return consumer.consume_type is not ConsumeType.POP and retry_topic(name) not in state.topics

    def _ensure_one(self, consumer: ConsumerData, done: Callable[[object], None], request: Request | None) -> None:
        def group_exists(error: Exception | None) -> None:
            config = self._machine.state.table(GROUPS).by_name.get(consumer.group_name)
            if error is not None or config is None or consumer.consume_type is ConsumeType.POP:
                done(error)
            else:
                self._machine.proposals.ensure_topic(retry_topic_config(config), done)

        try:
            self._groups.require_room(request, consumer.group_name)
        except NoPermission:
            # The client's other groups must work all the same. Later requests of this group's members are answered with
            # the reason.
            done(None)
            return
        self._groups.ensure_group(SubscriptionGroupConfig(consumer.group_name), group_exists)

    # ---------------------------------------------------------------- notices

    def notify(self, groups: set[str], clients: Container[str] | None) -> None:
        """Send 40 to this node's members of the groups, so that they rebalance; only to members in `clients` unless
        that is None.

        Held pulls of these groups are answered first. The C++ client waits until its old pulls of a queue have ended,
        if it has released the queue and now gets it back.
        """
        changed = {group for group in groups if self._is_notified(group)}
        if not changed:
            return
        self._gossip.release_pulls(changed)
        for group in sorted(changed):
            ext = encode_ext(ConsumerGroupHeader(group))
            for channel in self._gossip.local.channels_of(group, clients):
                channel.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext)

    def _is_notified(self, group: str) -> bool:
        config = self._machine.state.table(GROUPS).by_name.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def announce_leader(self) -> None:
        """Send 20002 with the current leader to the clients that subscribed to it."""
        address = self._group.leader_address
        if address is None or (self._group.leader_id == self._group.node_id and not self._group.ready):
            return
        announced = (self._group.term, address)
        if announced == self._last_announced:
            return
        self._last_announced = announced
        ext = {"term": str(self._group.term), "leaderAddr": address, "brokerName": self._live.config.broker_group}
        for connection in self._channels:
            if connection.wants_leader_notices:
                connection.push(LEADER_CHANGED_CODE, ext)


def _ignore_completion() -> None:
    """Do nothing: the callback of a caller that does not wait."""
