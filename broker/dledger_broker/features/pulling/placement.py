"""Placement of readers: the broker id at which a reader is told to pull next (`suggestWhichBrokerId`).

Any node serves pulls; stock clients go where the last answer says, by the route that they know, which may be 30 s old.
The leader chooses among *homes*: the followers that can serve now and, with `spread`, itself; it tells the followers,
on the channel of `clients.gossip`, with each answer to their tables.  A follower keeps the readers that have their home
there and sends others back to the leader.

For `CHANGE_S` after a change of leadership nobody is sent to id 0:

1. The leader dies, and a follower leads now.  2. A reader pulls from that one by the id that it had as a follower, and
is told to go to 0.  3. By its old route that is the dead node, where it stands until it asks for the route again.

So a new leader is no home of its own at first, and keeps whom it has no other home for under the id that it had;
followers keep who is there, but those that leave.  One that has heard no leader for so long sends its readers away: it
may be cut off.
"""

from __future__ import annotations

import math
from binascii import crc32
from collections.abc import Sequence
from typing import Final

from dledger.environment import Environment
from dledger.log import Log
from dledger_broker.clients.gossip import READS_AS, Gossip
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_remoting.route import MASTER_ID

CHANGE_S: Final = 60.0
"""Twice the interval at which stock clients ask for routes."""
TOLD_S: Final = 12.0
"""What a follower was told holds so long: it is told anew about every 5 s."""
MAX_SILENCE_MS: Final = 2_000
MAX_LAG_ENTRIES: Final = 1_000
"""A follower that has been silent for longer, or lags more, is no home."""
LOOK_S: Final = 0.5
"""How often the leader looks which followers are."""


class Placement:
    """One node's part in it."""

    def __init__(
        self, env: Environment, log: Log, group: Group, live: LiveConfig, gossip: Gossip, access: Access
    ) -> None:
        self._env = env
        self._log = log
        self._group = group
        self._live = live
        self._gossip = gossip
        self._access = access
        self._own_id = live.own.broker_id_when_follower
        self._leader: tuple[int, str | None] = (0, None)
        self._changed_at = env.now()
        self._homes: Sequence[int] = ()
        self._homes_at = -math.inf
        gossip.facts[READS_AS] = self._reads_as
        gossip.attach_placement(self)
        group.listeners.append(self._on_leadership)

    def next_id(self, topic: str, queue_id: int, behind_bytes: int | None) -> int:
        """Where a reader of a queue pulls next; what it reads lies `behind_bytes` before the end of the log, None if
        nothing that it looked for tells.
        """
        if self._live.config.follower_reads == "off":
            return MASTER_ID
        if self._group.is_leaving and not self._group.ready:
            return MASTER_ID
        chosen = self._choose(topic, queue_id, behind_bytes)
        return self._own_id if chosen == MASTER_ID and self._is_changing else chosen

    def id_without_leader(self) -> int:
        """Where a reader pulls next whose pull was passed on to a leader that does not answer: here, by the id at which
        this node serves readers. Id 0 may be that leader by its route.
        """
        own_id = self._reads_as()
        return MASTER_ID if own_id is None else own_id

    def _choose(self, topic: str, queue_id: int, behind_bytes: int | None) -> int:
        config, leads = self._live.config, self._group.ready
        if not leads and self._is_changing:
            return self._own_id
        if config.follower_reads == "lagging":
            # Followers keep readers to half of the limit: one that has come near it is not sent to and fro.
            limit = config.follower_reads_behind_bytes if leads else config.follower_reads_behind_bytes // 2
            if not (behind_bytes > limit if behind_bytes is not None else not leads):
                return MASTER_ID
        home = self._home(topic, queue_id)
        return home if leads or home == self._own_id else MASTER_ID

    def homes(self) -> Sequence[int]:
        """Leader: the broker ids at which readers have their homes, ascending; at most `LOOK_S` old."""
        now = self._env.now()
        if now - self._homes_at > LOOK_S:
            self._homes, self._homes_at = self._look(), now
        return self._homes

    def told(self, homes: Sequence[int]) -> None:
        """Follower: where the leader places readers."""
        self._homes, self._homes_at = homes, self._env.now()

    def _look(self) -> Sequence[int]:
        ids = self._gossip.told(READS_AS)
        fit = [
            ids[peer.node_id]
            for peer in self._log.status().peers
            if peer.voter and peer.node_id in ids
            if peer.contact_ms <= MAX_SILENCE_MS and peer.lag <= MAX_LAG_ENTRIES
        ]
        with_leader = self._live.config.follower_reads == "spread" and not self._is_changing
        return sorted([MASTER_ID, *fit] if with_leader else fit)

    def _home(self, topic: str, queue_id: int) -> int:
        """The home of a queue's readers: neighbouring queues have different ones."""
        if self._group.ready:
            homes = self.homes()
        else:
            homes = self._homes if self._env.now() - self._homes_at <= TOLD_S else ()
        return homes[(crc32(topic.encode()) + queue_id) % len(homes)] if homes else MASTER_ID

    @property
    def _is_changing(self) -> bool:
        """Whether clients may know another leader than the present one."""
        return self._env.now() - self._changed_at < CHANGE_S

    def _reads_as(self) -> int | None:
        """The id at which this node serves readers; None if it does not, as where it has to refuse every request."""
        wanted = self._live.config.follower_reads != "off" and not self._group.is_leaving
        return self._own_id if wanted and self._access.obstacle is None else None

    def _on_leadership(self) -> None:
        leader = (self._group.term, self._group.leader_id)
        if leader != self._leader:
            self._leader, self._changed_at = leader, self._env.now()
            self._homes, self._homes_at = (), -math.inf
