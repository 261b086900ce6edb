"""Requests about queue locks: lock and renew (41), unlock (42), and unlock everything when a client leaves (20016).

A job of the leader ends locks whose owners have not renewed them in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.locks.changes import LockChanges
from dledger_broker.features.locks.leases import Leases, RequestNumber
from dledger_broker.features.locks.table import NAME, LockKey, Owner
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.jobs import Job, JobHandle
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests, own_request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, Needs, Route
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.errors import GroupNotExist, InvalidParameter
from dledger_remoting.headers import UnregisterClientHeader, decode_ext, encode_ext
from dledger_remoting.queue_locks import MAX_SESSION_CHARS, LockedQueuesBody, LockNumberHeader, QueueLocksBody
from dledger_remoting.topics import MessageQueue, SubscriptionGroupConfig, validate_group, validate_topic

CHECK_PERIOD_S: Final = 10.0
MAX_ROWS: Final = 200
"""Maximum number of locks that one command ends. With the longest names it still fits the smallest segment."""


class EndedLeases:
    """Leader job that ends expired locks every ten seconds; implements `dledger_broker.kernel.jobs.Job`.

    Before the feature is active no locks exist, so it proposes nothing.
    """

    name: Final = "lock_leases"

    def __init__(self, changes: LockChanges) -> None:
        self._changes = changes

    def run(self, handle: JobHandle) -> None:
        """Begin to search for expired locks, every `CHECK_PERIOD_S`."""
        handle.call_later(CHECK_PERIOD_S, partial(self._end_expired, handle))

    def _end_expired(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._end_expired, handle))
        expired = self._changes.expired()
        for begin in range(0, len(expired), MAX_ROWS):
            self._changes.end(expired[begin : begin + MAX_ROWS], handle, _ignore_outcome)


def _ignore_outcome(_error: object) -> None:
    """Ignore the outcome: the next search finds the locks that are still there."""


MAX_CLIENT_ID_CHARS: Final = 1_024
MAX_NAMED_CHARS: Final = 127
"""Maximum number of characters of a broker group's name in a refusal."""


def _group_in(request: Request) -> tuple[str, ...]:
    return (decode_body(QueueLocksBody, request.body, "queue locks").consumer_group,)


def _topics_in(request: Request) -> set[str]:
    return {queue.topic for queue in decode_body(QueueLocksBody, request.body, "queue locks").mq_set}


_LOCK: Final = (
    rights.groups_in("consumerGroup in the body", _group_in, Action.SUB),
    rights.topics_in("all in the body", _topics_in, Action.SUB),
)


class LockRequests(Part):
    """Part that locks queues for members of consumer groups, on the leader."""

    def __init__(
        self,
        machine: BrokerMachine,
        changes: LockChanges,
        env: Environment,
        group: LeadershipView,
        counters: BrokerCounters,
        requests: Requests,
        group_proposals: GroupProposals,
        live: LiveConfig,
    ) -> None:
        self._machine = machine
        self._changes = changes
        self._env = env
        self._group = group
        self._counters = counters
        self._requests = requests
        self._group_proposals = group_proposals
        self._live = live
        self._job = EndedLeases(changes)
        self._ready_in: int | None = None
        self.leader_changed()

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.LOCK_BATCH_MQ: Route(self.lock, Needs.LEADER, CHANGES, rights=_LOCK),
            RequestCode.UNLOCK_BATCH_MQ: Route(self.unlock, Needs.LEADER, CHANGES, rights=_LOCK),
            RequestCode.RELEASE_LOCKS: Route(
                self.release_all,
                Needs.LEADER,
                CHANGES,
                rights=(rights.group("consumerGroup", Action.SUB, optional=True),),
            ),
        }

    @property
    def leases(self) -> Leases:
        """Return the leases of all locks, which count while this node leads."""
        return self._changes.leases

    @property
    def jobs(self) -> Sequence[Job]:
        return (self._job,)

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("queue_locks", "Queues that members of consumer groups have locked", self._count),)

    def _count(self) -> int:
        return len(self._changes.table)

    def holds_any(self, group: str) -> bool:
        """Return whether members of a group have queues locked. Only the leader knows."""
        return self._changes.holds_any(group)

    def leader_changed(self) -> None:
        """Let leases run anew whenever this node becomes ready as the leader, also again in the same term."""
        ready_in = self._group.term if self._group.ready else None
        if ready_in is not None and ready_in != self._ready_in:
            self.leases.begin(self._env.now())
        self._ready_in = ready_in

    # ---------------------------------------------------------------- lock

    def lock(self, request: Request) -> None:
        """Handle 41: lock queues or renew locks. The answer has the queues that the client owns now.

        The lease of a renewed lock is extended at once, so that nobody takes the lock meanwhile. The answer waits until
        a majority has confirmed this leader, because another leader may have granted the queue to another client. A new
        lock is a command, and the answer waits until it is applied.
        """
        body, number = self._read(request), _number_of(request)
        owner, channel = Owner(request.account, body.client_id), request.origin.key
        if body.consumer_group not in self._machine.state.table(GROUPS).by_name:
            self._make_group(request, body.consumer_group)
            return
        keys = [key for key in _keys(body) if not self._changes.is_released(key, owner, number)]
        renewed = {key for key in keys if self._changes.renew(key, owner, channel, number)}
        requested = [key for key in keys if key not in renewed and self._changes.may_acquire(key, owner)]
        acquired = self._within_limit(body.consumer_group, requested)
        if acquired or renewed or not requested:
            granted = renewed.union(acquired)
            queues = [(queue, key) for queue in body.mq_set if (key := _key(body, queue)) in granted]
            answer = partial(self._answer, request, queues, owner)
            if acquired:
                on_acquired = partial(self._on_acquired, request, answer)
                self._changes.acquire(body.consumer_group, acquired, owner, channel, number, on_acquired)
            else:
                self._requests.when_confirmed(request, answer)
            return
        raise InvalidParameter(
            f"the members of group {body.consumer_group} have locked {self._changes.count(body.consumer_group)} "
            f"queues, the limit is {self._max_locks}: let them subscribe to fewer, or raise max_locks_per_group"
        )

    @property
    def _max_locks(self) -> int:
        return self._live.config.max_locks_per_group

    def _make_group(self, request: Request, name: str) -> None:
        """Make the group, then resume the request. Go's client locks before its first heartbeat, then 20 s later."""
        if not self._live.config.auto_create_group:
            raise GroupNotExist(f"consumer group {name} does not exist: create it first")
        self._group_proposals.require_room(request, name)
        self._group_proposals.ensure_group(SubscriptionGroupConfig(name), partial(self._requests.resume, request))

    def _within_limit(self, group: str, requested: Sequence[LockKey]) -> list[LockKey]:
        """Return the wanted locks that exist already, and as many new locks as the group's limit allows."""
        free = self._max_locks - self._changes.count(group)
        allowed: list[LockKey] = []
        for key in requested:
            is_new = self._changes.owner(key) is None
            if not is_new or free > 0:
                allowed.append(key)
            free -= is_new
        if len(allowed) < len(requested):
            self._counters.max_locks_per_group += 1
        return allowed

    def _on_acquired(self, request: Request, answer: partial[None], error: LogError | None) -> None:
        if error is None:
            answer()
        else:
            self._requests.fail(request, error)

    def _answer(self, request: Request, granted: Sequence[tuple[MessageQueue, LockKey]], owner: Owner) -> None:
        """Answer with the queues that the client owns by the applied state. Another client may own some by now."""
        queues = [queue for queue, key in granted if self._changes.is_granted(key, owner)]
        self._requests.respond(request, encode_body(LockedQueuesBody(queues)))

    # ---------------------------------------------------------------- give up

    def unlock(self, request: Request) -> None:
        """Handle 42: unlock queues that were granted to the client by earlier requests.

        The channel or the number of the request shows which grants were earlier. Other locks end with their leases.
        """
        body = self._read(request)
        self._release(request, _keys(body), Owner(request.account, body.client_id), _number_of(request))

    def release_all(self, request: Request) -> None:
        """Handle 20016: unlock all queues that a client has locked in a group."""
        header = decode_ext(UnregisterClientHeader, request.ext)
        owner = Owner(request.account, header.client_id)
        self._release(request, self._changes.owned(header.consumer_group or "", owner), owner, None)

    def client_left(self, request: Request, header: UnregisterClientHeader) -> None:
        """Make the leader free the locks of a client that leaves its consumer group (35).

        The leader handles this oneway request after all earlier requests of the client over this channel.
        """
        if not header.consumer_group or not self._machine.is_active(NAME):
            return
        ext = encode_ext(UnregisterClientHeader(header.client_id, consumer_group=header.consumer_group))
        command = RemotingCommand(RequestCode.RELEASE_LOCKS, opaque=request.opaque, flag=FLAG_ONEWAY, ext=ext)
        release = own_request(request.origin, command, request.received, request.account)
        if request.origin.forwards:
            self._requests.pass_on(release)
        else:
            self._requests.run(release)

    def _release(self, request: Request, keys: Iterable[LockKey], owner: Owner, number: RequestNumber | None) -> None:
        self._changes.release(keys, owner, request.origin.key, number, partial(self._on_released, request))

    def _on_released(self, request: Request, error: LogError | None) -> None:
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)

    def _read(self, request: Request) -> QueueLocksBody:
        """Return the body of 41 or 42. Raises `BodyError` or `InvalidParameter`, which say what to change."""
        body = decode_body(QueueLocksBody, request.body, "queue locks")
        validate_group(body.consumer_group)
        if not body.client_id.strip():
            raise InvalidParameter("queue locks body: clientId is empty")
        if len(body.client_id) > MAX_CLIENT_ID_CHARS:
            raise InvalidParameter(
                f"queue locks body: clientId has {len(body.client_id)} characters, the limit is {MAX_CLIENT_ID_CHARS}"
            )
        if len(body.mq_set) > self._max_locks:
            raise InvalidParameter(
                f"queue locks body: {len(body.mq_set)} queues, the limit is {self._max_locks}: name fewer at once"
            )
        own = self._live.config.broker_group
        for queue in body.mq_set:
            validate_topic(queue.topic)
            if queue.broker_name not in {own, ""}:
                # The queue number alone would lock or unlock the queue with the same number here.
                raise InvalidParameter(
                    f"queue locks body: queue {queue.queue_id} of {queue.topic} is of broker group "
                    f"{queue.broker_name[:MAX_NAMED_CHARS]}, and this is {own}: ask a node of that group"
                )
            if queue.queue_id < 0:
                raise InvalidParameter(f"queue locks body: queueId {queue.queue_id} of {queue.topic} is negative")
        return body


def _number_of(request: Request) -> RequestNumber | None:
    """Return the number of a request, None if its client does not number requests. Raises `InvalidParameter`."""
    header = decode_ext(LockNumberHeader, request.ext)
    if header.lock_session is None or header.lock_number is None:
        return None
    if len(header.lock_session) > MAX_SESSION_CHARS:
        raise InvalidParameter(
            f"lockSession has {len(header.lock_session)} characters, the limit is {MAX_SESSION_CHARS}"
        )
    return RequestNumber(header.lock_session, header.lock_number)


def _key(body: QueueLocksBody, queue: MessageQueue) -> LockKey:
    return LockKey(body.consumer_group, queue.topic, queue.queue_id)


def _keys(body: QueueLocksBody) -> list[LockKey]:
    """Return the keys of the queues in a body, without duplicates."""
    return list(dict.fromkeys(_key(body, queue) for queue in body.mq_set))
