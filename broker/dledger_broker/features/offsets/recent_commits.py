"""Memory of who committed which consumer offset of late: it tells a delayed commit from a consumer that seeks back.

A commit that another node passed on must not undo a newer one of its client:

1. a client commits 100 through a follower, where it is held up;
2. it commits 120 at the leader, or through another node;
3. the first commit arrives, at this leader or at a later one.

A client that seeks back commits the lower offset through the channel that it committed through before. So each row of
`CommitOffsets` says who committed, every replica remembers that for `LATE_COMMIT_S` after it has applied it, and a new
leader tells the two apart from its first moment. The digest of the state leaves it out, because each replica counts the
time by its own clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from dledger_broker.kernel.digest import item_hash

LONGEST_STANDSTILL_S: Final = 60.0
"""A node may stand still for so long (SIGSTOP, a suspended machine) and then pass on what its clients sent before."""
LATE_COMMIT_S: Final = LONGEST_STANDSTILL_S + 15.0
"""How long after a commit an older one of its client, delayed on its way through another node, is recognised: longer
than that node stands still, and the commit waits for a leader and for its answer, together."""
MAX_CLIENTS_PER_CHANNEL: Final = 8
"""So many of the clients that heartbeat through one channel are told apart from others."""
MAX_CLIENTS_PER_QUEUE: Final = 4
"""So many clients that committed the same queue's offset one after the other are remembered."""

Key: TypeAlias = tuple[str, str, int]
"""Group, topic, queue id."""


class Committer(NamedTuple):
    """Who committed: hashes of 64 bits of a channel's key, of the clients behind it and of their address."""

    channel: int
    clients: tuple[int, ...]
    ip: int

    @classmethod
    def of(cls, channel: str, client_ids: Iterable[str], ip: str) -> Committer:
        """The committer that a channel stands for now."""
        clients = sorted(map(_hashed, client_ids))[:MAX_CLIENTS_PER_CHANNEL]
        return cls(_hashed(channel), tuple(clients), _hashed(ip))

    def is_same_client(self, other: Committer) -> bool:
        """Whether both are one client, as far as is known: without heartbeats its address stands for it."""
        if self.clients and other.clients:
            return not set(self.clients).isdisjoint(other.clients)
        return self.ip == other.ip


class Taken(NamedTuple):
    """A commit that was taken at a time of the event loop's clock; `by` is None if nobody said who it was."""

    offset: int
    by: Committer | None
    at: float


Remembered: TypeAlias = tuple[int, int, Committer | None]
"""Queue id, offset, committer."""


class RecentCommits:
    """The last commit of each of a queue's last clients, for `LATE_COMMIT_S`.

    Of a queue of which nothing is remembered, nobody has committed an offset for so long; before `unknown_until` that
    is not known, because the state came from a version that did not remember.
    """

    def __init__(self) -> None:
        self.unknown_until = float("-inf")
        self._taken: OrderedDict[Key, tuple[Taken, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._taken)

    def learn(
        self,
        rows: Iterable[tuple[str, str, int, int]],
        committers: tuple[Committer, ...],
        by: tuple[int, ...],
        now: float,
    ) -> None:
        """Remember what a `CommitOffsets` command has just changed."""
        numbers = iter(by)
        for group, topic, queue_id, offset in rows:
            number = next(numbers, -1)
            committer = committers[number] if 0 <= number < len(committers) else None
            self.note((group, topic, queue_id), Taken(offset, committer, now))
        self._forget_old(now)

    def note(self, key: Key, taken: Taken) -> None:
        """Remember one commit; it takes the place of the one before of the same client."""
        others = [known for known in self._taken.get(key, ()) if not _is_same(known.by, taken.by)]
        self._taken[key] = (*others[1 - MAX_CLIENTS_PER_QUEUE :], taken)
        self._taken.move_to_end(key)

    def of(self, key: Key, now: float) -> tuple[Taken, ...]:
        """What is remembered of a queue, oldest first."""
        known = self._taken.get(key, ())
        return known if not known or now - known[0].at <= LATE_COMMIT_S else _recent(known, now)

    def is_late(self, by: Committer, key: Key, offset: int, under_way: tuple[Taken, ...], now: float) -> bool:
        """True if the same client has committed a higher offset since, through another channel.

        `under_way` are commits of the queue that were taken and are not yet applied, oldest first.
        """
        for taken in reversed(self.of(key, now) + under_way):
            if taken.by is not None and taken.by.is_same_client(by):
                return taken.by.channel != by.channel and offset < taken.offset
        return False

    def may_be_late(self, key: Key, offset: int, now: float) -> bool:
        """True if nobody knows who has committed a higher offset of late."""
        known = self.of(key, now)
        unnamed = any(taken.by is None and offset < taken.offset for taken in known)
        return unnamed or (not known and now < self.unknown_until)

    def moved(self, by: Committer, key: Key, now: float) -> bool:
        """True if a client that repeats its last commit does so through another channel than the one remembered."""
        for taken in reversed(self.of(key, now)):
            if taken.by is not None and taken.by.is_same_client(by):
                return taken.by.channel != by.channel
        return False

    def capture(self, now: float) -> dict[tuple[str, str], list[Remembered]]:
        """What is remembered now, by (group, topic)."""
        captured: dict[tuple[str, str], list[Remembered]] = {}
        for (group, topic, queue_id), known in self._taken.items():
            for taken in _recent(known, now):
                captured.setdefault((group, topic), []).append((queue_id, taken.offset, taken.by))
        return captured

    def restore(self, group: str, topic: str, rows: Iterable[Remembered], now: float) -> None:
        """Remember what another replica, or this one before it was restarted, has captured: as if it were new."""
        for queue_id, offset, by in rows:
            self.note((group, topic, queue_id), Taken(offset, by, now))

    def forget(self, key: Key) -> None:
        """Whoever committed a queue's offset, its group goes on elsewhere now."""
        self._taken.pop(key, None)

    def _forget_old(self, now: float) -> None:
        while self._taken and now - next(iter(self._taken.values()))[-1].at > LATE_COMMIT_S:
            self._taken.popitem(last=False)


def _recent(known: tuple[Taken, ...], now: float) -> tuple[Taken, ...]:
    return tuple(taken for taken in known if now - taken.at <= LATE_COMMIT_S)


def _is_same(one: Committer | None, other: Committer | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.is_same_client(other)


@lru_cache(maxsize=16_384)
def _hashed(text: str) -> int:
    return item_hash(text)
