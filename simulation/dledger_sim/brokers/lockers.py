"""Ordered consumers: members of a group that lock queues, renew, unlock, reconnect and die. With their judge.

A member believes in a lock from the answer that grants it until `BELIEF_S` after the *send* of the request. It stops
believing when it unlocks or dies. Two members must never believe in the same queue at once, regardless of faults.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Final

from dledger_broker.features.locks.leases import LEASE_S
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.headers import encode_ext
from dledger_remoting.hosts import HostAddress
from dledger_remoting.queue_locks import LockNumberHeader
from dledger_sim.brokers.connection import BROKER_GROUP, Answer, SimConnection
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require
from dledger_sim.seen.history import Operation
from dledger_sim.seen.locks import Owners

BELIEF_S: Final = 31.0
"""Time for which a member believes in a lock, in seconds.

RocketMQ's clients believe for 30 s from an answer, and wait a second for the answer.
"""
PATIENCE_S: Final = 15.0
"""Time in seconds within which a whole group has a leader and answers."""
BUSY_SHARE: Final = 0.5
"""Minimum share of the usual times where calls take time.

A busy node's clock runs ahead there by up to a second (`group_times`).

With this share a lease still outlasts a belief by that much.
"""
ANSWER_TIMEOUT_S: Final = 1.0
LOCKED_TOPIC: Final = "locked"
LOCKED_GROUP: Final = "ordered"
QUEUES: Final = (0, 1, 2)
RENEWAL_S: Final = 20.0
FIRST_PORT: Final = 60_000


def share_in(group: SimGroup, share: float) -> float:
    """Return the share of the usual time for which members rely on locks, and leases run."""
    return max(share, BUSY_SHARE) if group.settings.call_cost_s else share


class LockJudge:
    """Judge of the locks that members were granted, by the check that chaos runs have, too (`dledger_sim.seen.locks`).

    Members believe in a lock for `belief_s` from the request on.
    """

    def __init__(self, counts: Counter[str], belief_s: float = BELIEF_S) -> None:
        self._counts = counts
        self._owners = Owners(_ns(belief_s))
        self._last_owners: dict[int, str] = {}
        self._operations = itertools.count()

    def granted(self, member: str, queue_id: int, now: float, sent_at: float) -> None:
        """Check a queue that was granted to a member, which asked for it at `sent_at`."""
        before = self._owners.owner(str(queue_id))
        wrong = self._owners.grant(self._make_operation("lock", member, queue_id, sent_at, now))
        require(not wrong, "one member of a group at a time has the lock of a queue", found=wrong)
        if self._last_owners.get(queue_id, member) != member:
            self._counts["lock changed hands"] += 1
            self._counts["lock taken when a belief was over"] += before is not None and before != member
        self._last_owners[queue_id] = member
        self._counts["lock granted"] += 1

    def ended(self, member: str, queue_id: int, now: float) -> None:
        """Note that a member unlocks a queue, or is dead."""
        self._owners.unlock(self._make_operation("unlock", member, queue_id, now, now))

    def _make_operation(self, f: str, member: str, queue_id: int, sent_at: float, now: float) -> Operation:
        number, queue = next(self._operations), str(queue_id)
        return Operation(number, "locks", member, f, queue, None, "ok", _ns(sent_at), _ns(now))

    def last_owner(self, queue_id: int) -> str | None:
        """Return the member that was granted a queue last."""
        return self._last_owners.get(queue_id)


class Locker:
    """Ordered consumer. After its death it comes back with another client id.

    It does everything for `share` of the usual time. Every second consumer numbers its
    requests as our client does. The others do not, as stock clients.
    """

    def __init__(self, group: SimGroup, random: Random, judge: LockJudge, number: int, share: float = 1.0) -> None:
        self.over = False
        """True if the member sends no further requests."""
        self._share = share
        self._group = group
        self._random = random
        self._judge = judge
        self._number = number
        self._connections = 0
        self._connection: SimConnection | None = None
        self.name = f"member-{number}"
        self._epoch = 0
        self._requests = itertools.count(1)

    def begin(self) -> None:
        """Start to act."""
        self._pause(0.0, 3.0)

    def _pause(self, least: float, most: float) -> None:
        delay_s = least + self._random.random() * (most - least)
        self._group.scheduler.after(delay_s * self._share, self._act)

    def _act(self) -> None:
        if self.over:
            return
        chance = self._random.random()
        if chance < 0.04:
            self._die()
        elif chance < 0.1:
            self._leave()
        elif chance < 0.25:
            self._unlock(self._random.choice(QUEUES))
        elif chance < 0.4:
            self._drop_connection()
        self.ask([queue_id for queue_id in QUEUES if self._random.random() < 0.7])
        if self._random.random() < 0.1:
            self._pause(RENEWAL_S, 3 * RENEWAL_S)
        else:
            self._pause(0.5, RENEWAL_S / 2)

    def ask(self, queues: Sequence[int]) -> None:
        """Lock queues, or renew their locks."""
        sent_at, epoch = self._group.scheduler.now, self._epoch
        self._call(
            RequestCode.LOCK_BATCH_MQ,
            self._make_body(queues),
            self._make_number_fields(),
            done=partial(self._handle_answer, sent_at, epoch),
        )

    def _handle_answer(self, sent_at: float, epoch: int, answer: Answer | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS or epoch != self._epoch:
            if answer is None or answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                self._drop_connection()
            return
        now = self._group.scheduler.now
        for queue in json.loads(answer.body)["lockOKMQSet"]:
            self._judge.granted(self.name, queue["queueId"], now, sent_at)

    def _unlock(self, queue_id: int) -> None:
        """Unlock a queue. Grants for requests that were sent earlier count no more."""
        self._epoch += 1
        self._judge.ended(self.name, queue_id, self._group.scheduler.now)
        self._call(
            RequestCode.UNLOCK_BATCH_MQ,
            self._make_body([queue_id]),
            self._make_number_fields(),
            oneway=self._random.random() < 0.3,
        )

    def _leave(self) -> None:
        self._forget_all()
        self._call(RequestCode.UNREGISTER_CLIENT, b"", {"clientID": self.name, "consumerGroup": LOCKED_GROUP})

    def _die(self) -> None:
        """Die, and restart under another name."""
        self._forget_all()
        self.name = f"member-{self._number}-{self._epoch}"
        self._drop_connection()

    def _forget_all(self) -> None:
        self._epoch += 1
        for queue_id in QUEUES:
            self._judge.ended(self.name, queue_id, self._group.scheduler.now)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _make_body(self, queues: Sequence[int]) -> bytes:
        named = [{"topic": LOCKED_TOPIC, "brokerName": BROKER_GROUP, "queueId": queue_id} for queue_id in queues]
        return json.dumps({"consumerGroup": LOCKED_GROUP, "clientId": self.name, "mqSet": named}).encode()

    def _make_number_fields(self) -> dict[str, str]:
        """Return the ext fields of a request about locks."""
        return encode_ext(LockNumberHeader(self.name, next(self._requests))) if self._number % 2 else {}

    def _call(
        self,
        code: int,
        body: bytes,
        ext: dict[str, str] | None = None,
        done: partial[None] | None = None,
        *,
        oneway: bool = False,
    ) -> None:
        connection = self._get_connection()
        if connection is not None:
            command = RemotingCommand(code, flag=FLAG_ONEWAY if oneway else 0, ext=ext or {}, body=body)
            connection.call(command, ANSWER_TIMEOUT_S, done or _ignore_answer)

    def _get_connection(self) -> SimConnection | None:
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        life = self._group.nodes[self._random.choice(sorted(self._group.nodes))].life
        if life is None or life.stopping:
            return None
        self._connections += 1
        number = 1_000 * (self._number + 1) + self._connections
        address = HostAddress("127.0.0.1", FIRST_PORT + number % 5_000)
        self._connection = SimConnection(self._group, life, self._random, address, FIRST_PORT + number)
        return self._connection


class Lockers:
    """Ordered consumers of a trial, which believe in locks for `share` of the usual time."""

    def __init__(self, random: Random, counts: Counter[str], number: int, share: float) -> None:
        self._random = random
        self._number = number
        self._share = share
        self._judge = LockJudge(counts)
        self._counts = counts
        self._members: list[Locker] = []

    def begin(self, group: SimGroup) -> None:
        """Start the consumers."""
        self._share = share_in(group, self._share)
        self._judge = LockJudge(self._counts, BELIEF_S * self._share)
        self._members = [self._make_member(group, number) for number in range(self._number)]
        for member in self._members:
            member.begin()

    def stop(self) -> None:
        """Stop the consumers. They ask for nothing more, and unlock nothing."""
        for member in self._members:
            member.over = True

    def check_free(self, group: SimGroup) -> None:
        """Check that a whole group gives every queue to a new member once the leases of other members have ended."""
        newcomer, scheduler = self._make_member(group, self._number), group.scheduler
        deadline = scheduler.now + 2 * LEASE_S * self._share + PATIENCE_S
        while self._members and any(self._judge.last_owner(queue_id) != newcomer.name for queue_id in QUEUES):
            require(scheduler.now < deadline, "a lock that is not renewed is free once its lease is over", by=deadline)
            newcomer.ask(QUEUES)
            scheduler.run_until(scheduler.now + ANSWER_TIMEOUT_S)

    def _make_member(self, group: SimGroup, number: int) -> Locker:
        return Locker(group, self._random, self._judge, number, self._share)


def _ignore_answer(_answer: Answer | None) -> None:
    """Ignore an answer."""


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
