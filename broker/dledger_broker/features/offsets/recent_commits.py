"""Memory of recent committers: distinguishes a delayed commit from a consumer that seeks back.

A commit that another node passed on must not undo a newer commit of its client:

1. A client commits 100 through a follower, where the commit is held up.
2. The client commits 120 at the leader, or through another node.
3. The first commit arrives, at this leader or at a later leader.

A client that seeks back commits the lower offset through the same channel as before. So each row of `CommitOffsets`
names the committer, and every replica remembers the committer for `LATE_COMMIT_S` after it has applied the row. A new
leader can therefore distinguish the two cases from its first moment. The digest of the state leaves this memory out,
because each replica measures the time by its own clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from dledger_broker.kernel.digest import item_hash

LONGEST_STANDSTILL_S: Final = 60.0
"""Maximum pause in seconds of a node (SIGSTOP, a suspended machine) after which it passes on earlier requests."""
MAX_COMMIT_HOLD_S: Final = 5.0
"""Maximum time in seconds for which a request that may commit waits for a leader, whatever `forward_hold_ms` is."""
LATE_COMMIT_S: Final = LONGEST_STANDSTILL_S + MAX_COMMIT_HOLD_S + 10.0
"""Time in seconds for which commits are remembered, to recognise an older commit of the same client that another node
delayed.

It is the sum of three times: a node's pause, a commit's wait for a leader, and the wait for the answer.
"""
MAX_CLIENTS_PER_CHANNEL: Final = 8
"""Maximum number of clients of one channel that are distinguished. Further clients of the channel are left out."""
MAX_CLIENTS_PER_QUEUE: Final = 4
"""Maximum number of recent committers remembered for one queue."""

Key: TypeAlias = tuple[str, str, int]
"""Group, topic, queue id."""


class Committer(NamedTuple):
    """Identity of a committer: 64-bit hashes of the channel's key, of the clients behind the channel and of their
    address.
    """

    channel: int
    clients: tuple[int, ...]
    ip: int

    @classmethod
    def of(cls, channel: str, client_ids: Iterable[str], ip: str) -> Committer:
        """Return the committer that uses a channel now."""
        clients = sorted(map(_hashed, client_ids))[:MAX_CLIENTS_PER_CHANNEL]
        return cls(_hashed(channel), tuple(clients), _hashed(ip))

    def is_same_client(self, other: Committer) -> bool:
        """Return whether both appear to be the same client. If one has sent no heartbeat, the address decides."""
        if self.clients and other.clients:
            return not set(self.clients).isdisjoint(other.clients)
        return self.ip == other.ip


class RecentCommit(NamedTuple):
    """Commit that was taken at a time of the event loop's clock. `committer` is None if the committer is unknown."""

    offset: int
    committer: Committer | None
    taken_at_s: float


Remembered: TypeAlias = tuple[int, int, Committer | None]
"""Queue id, offset, committer."""


class RecentCommits:
    """Memory of the last commit of each of a queue's recent committers, kept for `LATE_COMMIT_S`.

    If nothing is remembered of a queue, no offset of the queue was committed within that time. Before `unknown_until`
    this conclusion does not hold, because the state is from a version that did not remember committers.
    """

    def __init__(self) -> None:
        self.unknown_until = float("-inf")
        self._commits: OrderedDict[Key, tuple[RecentCommit, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._commits)

    def learn(
        self,
        rows: Iterable[tuple[str, str, int, int]],
        committers: tuple[Committer, ...],
        committer_numbers: tuple[int, ...],
        now: float,
    ) -> None:
        """Remember the commits of a `CommitOffsets` command that was just applied."""
        numbers = iter(committer_numbers)
        for group, topic, queue_id, offset in rows:
            number = next(numbers, -1)
            committer = committers[number] if 0 <= number < len(committers) else None
            self.note((group, topic, queue_id), RecentCommit(offset, committer, now))
        self._forget_old(now)

    def note(self, key: Key, commit: RecentCommit) -> None:
        """Remember a commit, in place of the previous commit of the same client."""
        other_commits = [
            previous for previous in self._commits.get(key, ()) if not _is_same(previous.committer, commit.committer)
        ]
        self._commits[key] = (*other_commits[1 - MAX_CLIENTS_PER_QUEUE :], commit)
        self._commits.move_to_end(key)

    def of(self, key: Key, now: float) -> tuple[RecentCommit, ...]:
        """Return the remembered commits of a queue, oldest first."""
        commits = self._commits.get(key, ())
        return commits if not commits or now - commits[0].taken_at_s <= LATE_COMMIT_S else _recent(commits, now)

    def is_overtaken(
        self, sender: Committer, key: Key, offset: int, in_flight: tuple[RecentCommit, ...], now: float
    ) -> bool:
        """Return whether the same client has since committed a higher offset through another channel.

        `in_flight` are commits of the queue that were taken and are not yet applied, oldest first.
        """
        for commit in reversed(self.of(key, now) + in_flight):
            if commit.committer is not None and commit.committer.is_same_client(sender):
                return commit.committer.channel != sender.channel and offset < commit.offset
        return False

    def may_be_overtaken(self, key: Key, offset: int, now: float) -> bool:
        """Return whether an unknown client has, or may have, recently committed a higher offset."""
        commits = self.of(key, now)
        unnamed = any(commit.committer is None and offset < commit.offset for commit in commits)
        return unnamed or (not commits and now < self.unknown_until)

    def has_changed_channel(self, sender: Committer, key: Key, now: float) -> bool:
        """Return whether the last commit of the same client came through another channel."""
        for commit in reversed(self.of(key, now)):
            if commit.committer is not None and commit.committer.is_same_client(sender):
                return commit.committer.channel != sender.channel
        return False

    def capture(self, now: float) -> dict[tuple[str, str], list[Remembered]]:
        """Return what is remembered now, by (group, topic)."""
        captured: dict[tuple[str, str], list[Remembered]] = {}
        for (group, topic, queue_id), commits in self._commits.items():
            for commit in _recent(commits, now):
                captured.setdefault((group, topic), []).append((queue_id, commit.offset, commit.committer))
        return captured

    def restore(self, group: str, topic: str, rows: Iterable[Remembered], now: float) -> None:
        """Remember what another replica, or this replica before a restart, has captured. The commits count as new."""
        for queue_id, offset, committer in rows:
            self.note((group, topic, queue_id), RecentCommit(offset, committer, now))

    def forget(self, key: Key) -> None:
        """Forget the committers of a queue, because its group now continues at another offset."""
        self._commits.pop(key, None)

    def _forget_old(self, now: float) -> None:
        while self._commits and now - next(iter(self._commits.values()))[-1].taken_at_s > LATE_COMMIT_S:
            self._commits.popitem(last=False)


def _recent(commits: tuple[RecentCommit, ...], now: float) -> tuple[RecentCommit, ...]:
    return tuple(commit for commit in commits if now - commit.taken_at_s <= LATE_COMMIT_S)


def _is_same(first: Committer | None, second: Committer | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.is_same_client(second)


@lru_cache(maxsize=16_384)
def _hashed(text: str) -> int:
    return item_hash(text)
