"""Judge of our client library: the messages that members of consumer groups were given, finished and committed.

- Ordered handling never works on two messages of a queue at a time, across all members. A member begins to work and
  commits only while it has the queue's lock.
- A commit that takes effect rests on work since the last reset of the group there. Every kept message below it was
  given to a member, and its work has ended. So no commit undoes a reset, and none skips a message.
- At the end every kept message was handled with success, or is a dead letter.
- Once all faults are healed, no queue with messages is stalled for longer than `UNREAD_S`.
- Once all members know their shares, each message is given to one member, once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from dledger_client import ReceivedMessage
from dledger_remoting.topics import is_retry_topic, retry_topic
from dledger_sim.brokers.expected import Incarnation, OffsetKey, Stored
from dledger_sim.brokers.library.process import Process, World

UNREAD_S: Final = 30.0
"""Maximum time for which a queue may be stalled, in seconds.

A share is looked up every 20 s, and a refused pull waits up to 16 s.
"""
BELIEF_S: Final = 30.0
"""Time for which a member relies on a lock after its request for the lock, in seconds."""
REPEATED_S: Final = 10.0
"""Maximum time for which a commit is repeated, and waits for an earlier commit of its queue, in seconds."""
LEASE_S: Final = 65.0
"""Time limit within which the locks of a dead member end, in seconds."""


class Work(NamedTuple):
    """Message on which a member works."""

    key: OffsetKey
    """Group, and the queue from which the message was read."""
    position: int
    operation: int
    began: float
    owner: str


class _LastReset(NamedTuple):
    """Last reset of a group in a queue: its offset and time. Work that began before does not count."""

    offset: int = 0
    moment: float = -1.0
    created: int = -1


class Deliveries:
    """Record of the work of all members. `ordered` groups handle one message of a queue at a time."""

    def __init__(self, world: World, ordered: frozenset[str], counts: Counter[str]) -> None:
        self._world = world
        self._ordered = ordered
        self._counts = counts
        self._working: defaultdict[OffsetKey, list[Work]] = defaultdict(list)
        self._ended_work: dict[tuple[str, int], float] = {}
        """Begin of the newest work on a record that has ended, by group and position."""
        self._succeeded_work: dict[tuple[str, int], float] = {}
        """Begin of the newest work that succeeded, by group and operation."""
        self._last_resets: dict[OffsetKey, _LastReset] = {}
        self._checked_ends: dict[OffsetKey, tuple[_LastReset, int]] = {}
        """Offset below which all work was found to be done, with the reset since which that holds."""
        self._last_moves: dict[OffsetKey, float] = {}
        """Time at which work in a queue last began or ended, or the queue was last empty."""
        self._last_departure = 0.0
        """Time at which a member last left or died. Its locks may stay for a while."""
        self.calm_from: float | None = None
        """Time from which on each stored message must be delivered once."""
        self.owners: set[str] = set()
        """Members that have got a message."""
        self._delivered_in_calm: set[tuple[str, int]] = set()
        """Messages stored since then that were delivered, by group and position."""
        world.commit_watchers.append(self._check_commit)
        world.truth.commit_watchers.append(self._check_committed)
        world.truth.resets.watchers.append(self._note_reset)

    @property
    def _now(self) -> float:
        return self._world.group.scheduler.now

    # ---------------------------------------------------------------- work of the members

    def begin(self, process: Process, group: str, message: ReceivedMessage) -> Work | None:
        """Note that a member has got a message. Return None for an unknown message, which is a broken promise."""
        stored = self._world.truth.by_position.get(message.physical_offset)
        key = (group, message.queue.topic, message.queue.queue_id)
        place = None if stored is None else (stored.topic, stored.queue_id, stored.offset)
        if stored is None or place != (*key[1:], message.queue_offset):
            self._world.breach(
                "a delivered message is stored at the offset of the delivery", key=key, message=message, stored=stored
            )
            return None
        owner = process.name
        work = Work(key, stored.position, stored.operation, self._now, owner)
        others = self._working[key]
        if others and group in self._ordered:
            promise = "ordered handling never works on two messages of a queue at a time"
            self._world.breach(promise, work=work, others=others)
        if group in self._ordered and self._now >= process.lock_asked_at(key) + BELIEF_S:
            self._world.breach("work begins only while the lock is held", work=work)
        others.append(work)
        self.owners.add(owner)
        if self.calm_from is not None and stored.moment >= self.calm_from:
            if (group, stored.position) in self._delivered_in_calm:
                self._world.breach("members that know their shares get each message once", work=work)
            self._delivered_in_calm.add((group, stored.position))
        self._last_moves[key] = self._now
        self._counts["delivered"] += 1
        self._counts["delivered from a retry topic"] += is_retry_topic(key[1])
        self._counts["delivered again"] += (group, stored.position) in self._ended_work
        return work

    def end(self, work: Work | None, *, success: bool) -> None:
        """Note that the work has ended. The client decides what follows."""
        if work is None or work not in self._working[work.key]:
            return
        self._remove_work(work)
        group = work.key[0]
        if success or group not in self._ordered:  # in ordered groups the next message waits for success
            self._ended_work[group, work.position] = max(work.began, self._ended_work.get((group, work.position), -1.0))
        if success:
            self._succeeded_work[group, work.operation] = max(
                work.began, self._succeeded_work.get((group, work.operation), -1.0)
            )

    def abandon(self, work: Work | None) -> None:
        """Note that the work was cut off: the message is not done."""
        if work is not None and work in self._working[work.key]:
            self._remove_work(work)

    def _remove_work(self, work: Work) -> None:
        self._working[work.key].remove(work)
        self._last_moves[work.key] = self._now

    def gone(self, owner: str) -> None:
        """Note that a member was killed or has left."""
        self._last_departure = self._now
        for work in [one for working in self._working.values() for one in working if one.owner == owner]:
            self._remove_work(work)

    def _check_commit(self, owner: str, key: OffsetKey, lock_asked_at: float) -> None:
        """Check a commit when a member writes it to its connection, because the connection may delay it."""
        if key[0] in self._ordered and self._now >= lock_asked_at + BELIEF_S + REPEATED_S:
            promise = "no member commits in a queue whose lock it does not have"
            self._world.breach(promise, member=owner, key=key, lock_asked_at=lock_asked_at)

    # ---------------------------------------------------------------- entries of the log

    def _note_reset(self, key: OffsetKey, offset: int) -> None:
        topic = self._world.truth.topics.get(key[1])
        if topic is not None:
            self._last_resets[key] = _LastReset(offset, self._now, topic.created)

    def _get_last_reset(self, key: OffsetKey, topic: Incarnation) -> _LastReset:
        """Return the last reset of a queue. A reset of an earlier creation of the topic does not count."""
        base = self._last_resets.get(key, _LastReset())
        return base if base.created == topic.created else _LastReset(created=topic.created)

    def _check_committed(self, key: OffsetKey, offset: int) -> None:
        topic = self._world.truth.topics.get(key[1])
        if topic is None or key[0] not in self._world.groups:
            return
        base, queue = self._get_last_reset(key, topic), topic.queues.get(key[2], [])
        if offset > len(queue):
            self._world.breach("a committed offset lies in its queue", key=key, offset=offset, end=len(queue))
        if offset < base.offset:
            self._world.breach("no commit undoes a reset", key=key, offset=offset, base=base)
        before, checked = self._checked_ends.get(key, (base, 0))
        start = max(base.offset, topic.first_offsets.get(key[2], 0), checked if before == base else 0)
        for stored in queue[start:offset]:
            if not self._is_done(key[0], stored, base):
                promise = "a commit rests on messages that were delivered since the last reset"
                self._world.breach(promise, key=key, offset=offset, base=base, missing=stored)
                return
        self._checked_ends[key] = (base, max(start, offset))

    def _is_done(self, group: str, stored: Stored, base: _LastReset) -> bool:
        return self._ended_work.get((group, stored.position), -1.0) >= max(base.moment, 0.0)

    # ---------------------------------------------------------------- the end

    def left(self) -> list[OffsetKey]:
        """Return the queues with waiting messages. Raises `Violation` if a queue is stalled for too long."""
        waiting: list[OffsetKey] = []
        for key, topic in self._iter_queues():
            first = self._find_first_left(key, topic)
            if first is None:
                self._last_moves[key] = self._now
                continue
            waiting.append(key)
            locks_end = self._last_departure + LEASE_S if key[0] in self._ordered else 0.0
            stood_s = self._now - max(self._world.healed_at, locks_end, self._last_moves.get(key, 0.0))
            if not self._working[key] and stood_s > UNREAD_S:
                self._world.breach("a queue with messages is read soon", key=key, for_s=stood_s, message=first)
        self._world.raise_broken()
        return waiting

    def _iter_queues(self) -> Iterator[tuple[OffsetKey, Incarnation]]:
        truth = self._world.truth
        for group, topics in self._world.groups.items():
            for name in (*topics, retry_topic(group)):
                topic = truth.topics.get(name)
                for queue_id in () if topic is None else sorted(topic.queues):
                    assert topic is not None
                    yield (group, name, queue_id), topic

    def _find_first_left(self, key: OffsetKey, topic: Incarnation) -> Stored | None:
        """Return the first kept message of a queue that is not done since the last reset."""
        base = self._get_last_reset(key, topic)
        start = max(base.offset, topic.first_offsets.get(key[2], 0))
        queue = topic.queues.get(key[2], [])
        return next((stored for stored in queue[start:] if not self._is_done(key[0], stored, base)), None)

    def failed(self) -> list[tuple[OffsetKey, Stored]]:
        """Return messages that no member has handled with success since the last reset, and that must come again."""
        failed_messages: list[tuple[OffsetKey, Stored]] = []
        for key, topic in self._iter_queues():
            group, base = key[0], self._get_last_reset(key, topic)
            start = max(base.offset, topic.first_offsets.get(key[2], 0))
            failed_messages += (
                (key, stored)
                for stored in topic.queues.get(key[2], [])[start:]
                if self._succeeded_work.get((group, stored.operation), -1.0) < max(base.moment, 0.0)
                and not self._is_excused(group, stored.operation)
            )
        return failed_messages

    def _is_excused(self, group: str, operation: int) -> bool:
        """Return whether a copy that had to come again was trimmed first."""
        retries = self._world.truth.topics.get(retry_topic(group))
        if retries is None:
            return False
        return any(
            stored.operation == operation
            for queue_id, queue in retries.queues.items()
            for stored in queue[: retries.first_offsets.get(queue_id, 0)]
        )
