"""Requests about queue locks: asked for and renewed (41), given up (42), given up by who leaves its group (20016)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.locks.changes import LockChanges
from dledger_broker.features.locks.job import EndedLeases
from dledger_broker.features.locks.leases import Leases
from dledger_broker.features.locks.table import NAME, LockKey, Owner
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.leadership import Group
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
from dledger_remoting.queue_locks import LockedQueuesBody, QueueLocksBody
from dledger_remoting.topics import MessageQueue, SubscriptionGroupConfig, validate_group, validate_topic

MAX_CLIENT_ID_CHARS: Final = 1_024
MAX_NAMED_CHARS: Final = 127
"""So much of a broker group's name a refusal repeats."""


def _group_in(request: Request) -> tuple[str, ...]:
    return (decode_body(QueueLocksBody, request.body, "queue locks").consumer_group,)


def _topics_in(request: Request) -> set[str]:
    return {queue.topic for queue in decode_body(QueueLocksBody, request.body, "queue locks").mq_set}


_LOCK: Final = (
    rights.groups_in("consumerGroup in the body", _group_in, Action.SUB),
    rights.topics_in("all in the body", _topics_in, Action.SUB),
)


class LockRequests(Part):
    """Locks queues for members of consumer groups, on the leader."""

    def __init__(
        self,
        machine: BrokerMachine,
        changes: LockChanges,
        env: Environment,
        group: Group,
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
        group.listeners.append(self._leadership_changed)
        self._leadership_changed()

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
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
        """Leases of all locks, while this node leads."""
        return self._changes.leases

    @property
    def jobs(self) -> Sequence[Job]:
        """See `Part.jobs`."""
        return (self._job,)

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (Gauge("queue_locks", "Queues that members of consumer groups have locked", self._count),)

    def _count(self) -> int:
        return len(self._changes.table)

    def holds_any(self, group: str) -> bool:
        """Leader: whether members of a group have queues locked."""
        return self._changes.holds_any(group)

    def _leadership_changed(self) -> None:
        """Leases start anew whenever this node is ready again, be it in the same term."""
        ready_in = self._group.term if self._group.ready else None
        if ready_in is not None and ready_in != self._ready_in:
            self.leases.begin(self._env.now())
        self._ready_in = ready_in

    # ---------------------------------------------------------------- lock

    def lock(self, request: Request) -> None:
        """41: lock queues, or go on having them locked; the answer has those that the client owns now.

        A lock that runs is extended in the turn in which its renewal comes, so that nobody takes it meanwhile; that is
        told only once a majority has confirmed this leader, for another one may have given the queue away. Everything
        else is a command, and told when it is applied.
        """
        body = self._read(request)
        owner, channel = Owner(request.account, body.client_id), request.origin.key
        if body.consumer_group not in self._machine.state.table(GROUPS).by_name:
            self._make_group(request, body.consumer_group)
            return
        keys = _keys(body)
        renewed = {key for key in keys if self._changes.renew(key, owner, channel)}
        wanted = [key for key in keys if key not in renewed and self._changes.may_acquire(key, owner)]
        acquired = self._within_limit(body.consumer_group, wanted)
        if acquired or renewed or not wanted:
            granted = renewed.union(acquired)
            queues = [(queue, key) for queue in body.mq_set if (key := _key(body, queue)) in granted]
            answer = partial(self._answer, request, queues, owner)
            if acquired:
                done = partial(self._acquired, request, answer)
                self._changes.acquire(body.consumer_group, acquired, owner, channel, done)
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
        """Go on once the group is there: Go's client locks before its first heartbeat, and again 20 s later."""
        if not self._live.config.auto_create_group:
            raise GroupNotExist(f"consumer group {name} does not exist: create it first")
        self._group_proposals.ensure_group(SubscriptionGroupConfig(name), partial(self._requests.resume, request))

    def _within_limit(self, group: str, wanted: Sequence[LockKey]) -> list[LockKey]:
        """The locks among these that are there, or that the group may have beside those it has."""
        left = self._max_locks - self._changes.count(group)
        allowed: list[LockKey] = []
        for key in wanted:
            is_new = self._changes.owner(key) is None
            if not is_new or left > 0:
                allowed.append(key)
            left -= is_new
        if len(allowed) < len(wanted):
            self._counters.max_locks_per_group += 1
        return allowed

    def _acquired(self, request: Request, answer: partial[None], error: LogError | None) -> None:
        if error is None:
            answer()
        else:
            self._requests.fail(request, error)

    def _answer(self, request: Request, granted: Sequence[tuple[MessageQueue, LockKey]], owner: Owner) -> None:
        """Tell which queues the client owns by what is applied: a lock may have gone to another before."""
        queues = [queue for queue, key in granted if self._changes.is_granted(key, owner)]
        self._requests.respond(request, encode_body(LockedQueuesBody(queues)))

    # ---------------------------------------------------------------- give up

    def unlock(self, request: Request) -> None:
        """42: give locks up, as far as the client was granted them over this channel; others end with their leases."""
        body = self._read(request)
        self._release(request, _keys(body), Owner(request.account, body.client_id))

    def release_all(self, request: Request) -> None:
        """20016: the same of all locks that a client has in a group."""
        header = decode_ext(UnregisterClientHeader, request.ext)
        owner = Owner(request.account, header.client_id)
        self._release(request, self._changes.owned(header.consumer_group or "", owner), owner)

    def client_left(self, request: Request, header: UnregisterClientHeader) -> None:
        """A client leaves its consumer group (35): the leader frees what it has locked.

        It hears of it behind all that the client has asked over this channel before, and nobody waits for it.
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

    def _release(self, request: Request, keys: Iterable[LockKey], owner: Owner) -> None:
        self._changes.release(keys, owner, request.origin.key, partial(self._released, request))

    def _released(self, request: Request, error: LogError | None) -> None:
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)

    def _read(self, request: Request) -> QueueLocksBody:
        """The body of 41 or 42. Raises `BodyError` or `InvalidParameter` with what to change."""
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
                # Its number alone would free, or take, the queue of the same number here.
                raise InvalidParameter(
                    f"queue locks body: queue {queue.queue_id} of {queue.topic} is of broker group "
                    f"{queue.broker_name[:MAX_NAMED_CHARS]}, and this is {own}: ask a node of that group"
                )
            if queue.queue_id < 0:
                raise InvalidParameter(f"queue locks body: queueId {queue.queue_id} of {queue.topic} is negative")
        return body


def _key(body: QueueLocksBody, queue: MessageQueue) -> LockKey:
    return LockKey(body.consumer_group, queue.topic, queue.queue_id)


def _keys(body: QueueLocksBody) -> list[LockKey]:
    """The queues in a body, each once."""
    return list(dict.fromkeys(_key(body, queue) for queue in body.mq_set))
