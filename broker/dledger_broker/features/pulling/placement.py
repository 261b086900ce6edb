"""Placement of readers: the broker id at which a reader has to pull next (`suggestWhichBrokerId`).

Any node serves pulls. Stock clients pull from the broker id in their last answer, by a route that may be 30 s old. The
leader places readers on *homes*: the followers that can serve now and, with `spread`, itself. It sends the homes to the
followers on the channel of `clients.gossip`, with each answer to their tables. A follower keeps the readers whose home
it is, and sends other readers back to the leader.

For `CHANGE_S` after a change of leadership no reader is sent to id 0:

1. The leader dies, and a follower becomes the leader.
2. A reader pulls from the new leader by its id as a follower, and is sent to id 0.
3. By the reader's old route, id 0 is the dead node. The reader is stuck there until it fetches the route again.

So a new leader does not become a home at first. It keeps readers that have no other home under the id that it had as a
follower. Followers keep their readers, unless they are leaving. A follower without a leader for that long sends its
readers away, because it may be cut off.

A follower passes some pulls on to the leader. Its answer for a leader that does not answer makes the reader repeat its
pull at the same offset, and at this node. A leader that does not answer is often
dead. By the route of a stock client, id 0 is still that leader for up to 30 s.
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
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.routes import Effect
from dledger_remoting.codes import ResponseCode
from dledger_remoting.hotpath import pull_response_head
from dledger_remoting.route import MASTER_ID

CHANGE_S: Final = 60.0
"""Time after a change of leadership in which clients may use an old route: twice the interval of their route
updates.
"""
TOLD_S: Final = 12.0
"""Time for which a follower uses the homes that it was sent. The leader sends them about every 5 s."""
MAX_SILENCE_MS: Final = 2_000
MAX_LAG_ENTRIES: Final = 1_000
"""Maximum lag of a follower that is a home. A follower that is silent for more than `MAX_SILENCE_MS` is not a home."""
LOOK_S: Final = 0.5
"""Interval at which the leader checks which followers can be homes."""


class Placement:
    """Placement on one node, as the leader or as a follower."""

    def __init__(
        self, env: Environment, log: Log, group: LeadershipView, live: LiveConfig, gossip: Gossip, access: Access
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

    def next_id(self, topic: str, queue_id: int, behind_bytes: int | None) -> int:
        """Return the broker id at which a reader of a queue pulls next.

        Its messages lie `behind_bytes` before the end of the log. `behind_bytes` is None if the read did not measure
        it.
        """
        if self._live.config.follower_reads == "off":
            return MASTER_ID
        if self._group.is_leaving and not self._group.ready:
            return MASTER_ID
        chosen = self._choose(topic, queue_id, behind_bytes)
        return self._own_id if chosen == MASTER_ID and self._is_changing else chosen

    def id_without_leader(self) -> int:
        """Return the broker id for a reader whose pull was passed on to a leader that does not answer.

        That is the id at which this node serves readers. By the reader's route, id 0 may be the silent leader.
        """
        own_id = self._reads_as()
        return MASTER_ID if own_id is None else own_id

    def _choose(self, topic: str, queue_id: int, behind_bytes: int | None) -> int:
        config, leads = self._live.config, self._group.ready
        if not leads and self._is_changing:
            return self._own_id
        if config.follower_reads == "lagging":
            # Followers keep readers down to half of the limit, so that a reader near the limit does not move to and
            # fro.
            limit = config.follower_reads_behind_bytes if leads else config.follower_reads_behind_bytes // 2
            if not (behind_bytes > limit if behind_bytes is not None else not leads):
                return MASTER_ID
        home = self._home(topic, queue_id)
        return home if leads or home == self._own_id else MASTER_ID

    def homes(self) -> Sequence[int]:
        """Return the broker ids of the homes on the leader, ascending. They are at most `LOOK_S` old."""
        now = self._env.now()
        if now - self._homes_at > LOOK_S:
            self._homes, self._homes_at = self._choose_homes(), now
        return self._homes

    def set_homes(self, homes: Sequence[int]) -> None:
        """Take the homes from the leader, on a follower."""
        self._homes, self._homes_at = homes, self._env.now()

    def _choose_homes(self) -> Sequence[int]:
        ids = self._gossip.reported_facts(READS_AS)
        fit = [
            ids[peer.node_id]
            for peer in self._log.status().peers
            if peer.voter and peer.node_id in ids
            if peer.contact_ms <= MAX_SILENCE_MS and peer.lag <= MAX_LAG_ENTRIES
        ]
        with_leader = self._live.config.follower_reads == "spread" and not self._is_changing
        return sorted([MASTER_ID, *fit] if with_leader else fit)

    def _home(self, topic: str, queue_id: int) -> int:
        """Return the home of a queue's readers. Neighbouring queues have different homes."""
        if self._group.ready:
            homes = self.homes()
        else:
            homes = self._homes if self._env.now() - self._homes_at <= TOLD_S else ()
        return homes[(crc32(topic.encode()) + queue_id) % len(homes)] if homes else MASTER_ID

    @property
    def _is_changing(self) -> bool:
        """True if clients may still know an earlier leader."""
        return self._env.now() - self._changed_at < CHANGE_S

    def _reads_as(self) -> int | None:
        """Return the id at which this node serves readers, or None if it serves no readers or must refuse every
        request.
        """
        wanted = self._live.config.follower_reads != "off" and not self._group.is_leaving
        return self._own_id if wanted and self._access.obstacle is None else None

    def leader_changed(self) -> None:
        """Forget the homes of another leader."""
        leader = (self._group.term, self._group.leader_id)
        if leader != self._leader:
            self._leader, self._changed_at = leader, self._env.now()
            self._homes, self._homes_at = (), -math.inf


PULL_ANSWER_TIMEOUT_S: Final = 65.0
"""Time limit for the leader's answer to a pull that was passed on. It is longer than the leader may hold the pull."""


def passed_on(placement: Placement) -> Effect:
    """Return the effect of pulls that were passed on. Later requests need not wait for their answers."""

    def pull_again(request: Request) -> None:
        if request.is_oneway:
            request.origin.settle()
            return
        try:
            offset = int(request.ext.get("queueOffset", ""))
        except ValueError:
            offset = 0
        frame = pull_response_head(
            request.opaque,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            offset,
            0,
            offset,
            remark="the leader did not answer, pull again",
            serialize_type=request.serialize_type,
            suggest_broker_id=placement.id_without_leader(),
        )
        request.origin.answer_frame(frame)

    return Effect(changes=False, answer_timeout_s=PULL_ANSWER_TIMEOUT_S, unanswered=pull_again)
