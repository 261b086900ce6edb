"""Members of consumer groups: the leader makes what their groups need, all nodes tell theirs of changes (40, 20002)."""

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
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.trying_again import TryingAgain
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers import ConsumerGroupHeader, encode_ext
from dledger_remoting.heartbeat import ConsumerData, ConsumeType
from dledger_remoting.topics import SubscriptionGroupConfig, is_system_group, retry_topic

MADE_S: Final = 1.0
"""A heartbeat to a follower waits no longer for what the leader makes, which may be refused there."""
LEADER_CHANGED_CODE: Final = 20002
"""A request of ours to clients that asked for it with the ext field `dledgerNotify=true`: the group's leader changed;
ext `term`, `leaderAddr`, `brokerName`. Oneway."""


class GroupMembers:
    """Called with heartbeats, and by gossip."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: Group,
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
        self._announced: tuple[int, str] | None = None
        self._again = TryingAgain(env, self._ensure_again)
        self._waiting: dict[Callable[[], None], Sequence[ConsumerData]] = {}
        machine.on_topics_changed.append(self._tell_those_who_wait)
        machine.on_groups_changed.append(self._tell_those_who_wait)
        group.listeners.append(self._announce_leader)
        gossip.attach_members(self)

    def ensure_all(self, rows: Iterable[ClientRow]) -> None:
        """Leader: create what the groups of these clients need."""
        for row in rows:
            self.ensure(row.consumers, _nothing)

    def ensure(self, consumers: Iterable[ConsumerData], done: Callable[[], None]) -> None:
        """Create missing groups and their retry topics, then call `done`; also if that failed: it is tried again."""
        waiting = 1

        def finished(error: object = None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                self._again.want()
            if waiting == 0:
                done()

        for consumer in consumers:
            if self._needs_something(consumer):
                waiting += 1
                self._ensure_one(consumer, finished)
        finished()

    def _ensure_again(self) -> None:
        """What was refused: clients of other nodes are told of only when they change."""
        if self._group.ready:
            self.ensure_all(self._gossip.merged.rows())

    def when_made(self, consumers: Sequence[ConsumerData], done: Callable[[], None]) -> None:
        """Follower: call `done` once the leader has made what these groups need, and this node knows it.

        A client that was answered before would lock its queues (41), which is refused for a group that does not exist.
        """
        if not any(map(self._needs_something, consumers)):
            done()
            return
        self._waiting[done] = consumers
        self._env.call_later(MADE_S, partial(self._tell, done))

    def _tell_those_who_wait(self) -> None:
        for done, consumers in list(self._waiting.items()):
            if not any(map(self._needs_something, consumers)):
                self._tell(done)

    def _tell(self, done: Callable[[], None]) -> None:
        if self._waiting.pop(done, None) is not None:
            done()

    def _needs_something(self, consumer: ConsumerData) -> bool:
        name = consumer.group_name
        if is_system_group(name):
            return False
        state = self._machine.state
        if name not in state.table(GROUPS).by_name:
            return self._live.config.auto_create_group
        return consumer.consume_type is not ConsumeType.POP and retry_topic(name) not in state.topics

    def _ensure_one(self, consumer: ConsumerData, done: Callable[[object], None]) -> None:
        def group_exists(error: Exception | None) -> None:
            config = self._machine.state.table(GROUPS).by_name.get(consumer.group_name)
            if error is not None or config is None or consumer.consume_type is ConsumeType.POP:
                done(error)
            else:
                self._machine.proposals.ensure_topic(retry_topic_config(config), done)

        self._groups.ensure_group(SubscriptionGroupConfig(consumer.group_name), group_exists)

    # ---------------------------------------------------------------- telling clients

    def notify(self, groups: set[str], clients: Container[str] | None) -> None:
        """40: have this node's members of the groups, or those among `clients`, look again.

        Their held pulls are answered before: the C++ client does not go on before the pulls of queues that it gave up,
        and now gets back, have ended.
        """
        changed = {group for group in groups if self._is_notified(group)}
        if not changed:
            return
        self._gossip.release_pulls(changed)
        for group in changed:
            ext = encode_ext(ConsumerGroupHeader(group))
            for channel in self._gossip.local.channels_of(group, clients):
                channel.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext)

    def _is_notified(self, group: str) -> bool:
        config = self._machine.state.table(GROUPS).by_name.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def _announce_leader(self) -> None:
        """20002: tell the clients that want to know who leads now."""
        address = self._group.leader_address
        if address is None or (self._group.leader_id == self._group.node_id and not self._group.ready):
            return
        announced = (self._group.term, address)
        if announced == self._announced:
            return
        self._announced = announced
        ext = {"term": str(self._group.term), "leaderAddr": address, "brokerName": self._live.config.broker_group}
        for connection in self._channels:
            if connection.wants_leader_notices:
                connection.push(LEADER_CHANGED_CODE, ext)


def _nothing() -> None:
    """For whoever waits for nothing."""
