"""Requests about offsets: consumer offsets (14, 15), and the offsets and times of queues (29, 30, 31, 32)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import NotLeaderError
from dledger_broker.clients.readers import Readers
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.offsets.recent_commits import Committer, Key
from dledger_broker.features.offsets.reset_rules import ResetRules
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel import rights
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part, Parts
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Origin, Principal, Request, Requests, read_request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_json_header
from dledger_remoting.errors import (
    GroupNotExist,
    InvalidParameter,
    NoPermission,
    QueryNotFound,
    SystemBusy,
    TopicNotExist,
)
from dledger_remoting.frame import SerializeType
from dledger_remoting.headers import (
    MaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.headers_consume import TOPIC_CREATED_FIELD
from dledger_remoting.hotpath import PullFields
from dledger_remoting.topics import is_system_group, require_readable, validate_group

MAX_SYSTEM_GROUPS: Final = 1_000
"""Maximum number of groups with offsets that exist without being created. No limit on groups counts them."""


class OffsetRequests(Part):
    """Handler of requests about offsets, on the leader. Queues of groups that are reset follow `ResetRules`."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: LeadershipView,
        requests: Requests,
        groups: GroupProposals,
        commits: OffsetCommits,
        readers: Readers,
    ) -> None:
        self._readers = readers
        self._machine = machine
        machine.on_state(self._keep_table)
        self._env = env
        self._group = group
        self._requests = requests
        self._groups = groups
        self.commits = commits
        self._buffer = commits.buffer
        self._resets = ResetRules()

    def meet(self, parts: Parts) -> None:
        self._resets = parts.find(ResetRules) or self._resets

    def unready(self, error: NotLeaderError) -> None:
        self.commits.unready(error)

    def prepare_handover(self) -> None:
        self.commits.prepare_handover()

    def prepare_deletion(self) -> None:
        self.commits.prepare_deletion()

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: Route(
                self.query,
                Needs.CONFIRMED_LEADER,
                NO_EFFECT,
                rights=(
                    rights.topic("topic", Action.SUB, Action.GET),
                    rights.group("consumerGroup", Action.SUB, Action.GET),
                ),
            ),
            RequestCode.UPDATE_CONSUMER_OFFSET: Route(
                self.update,
                Needs.LEADER,
                CHANGES,
                rights=(
                    rights.topic("topic", Action.SUB, Action.UPDATE),
                    rights.group("consumerGroup", Action.SUB, Action.UPDATE),
                ),
            ),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Route(
                self.search, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.topic("topic", Action.SUB, Action.GET),)
            ),
            RequestCode.GET_MAX_OFFSET: Route(
                self.maximum, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.topic("topic", Action.SUB, Action.GET),)
            ),
            RequestCode.GET_MIN_OFFSET: Route(
                self.minimum, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.topic("topic", Action.SUB, Action.GET),)
            ),
            RequestCode.GET_EARLIEST_MSG_STORETIME: Route(
                self.earliest_time,
                Needs.CONFIRMED_LEADER,
                NO_EFFECT,
                rights=(rights.topic("topic", Action.SUB, Action.GET),),
            ),
        }

    def _keep_table(self, state: BrokerState) -> None:
        self._offsets = state.table(OFFSETS)

    async def save(self) -> None:
        await self.commits.flush()

    # ---------------------------------------------------------------- of consumer groups

    def query(self, request: Request) -> None:
        """Answer with the committed offset (14), once commits under way are applied."""
        header = decode_ext(QueryConsumerOffsetHeader, request.ext)
        key = (header.consumer_group, header.topic, header.queue_id)

        def applied(error: Exception | None) -> None:
            if error is not None:
                self._requests.fail(request, error)
                return
            try:
                reset = self._resets.offset_told(request, key)
                self._respond_offset(request, header.topic, self._committed(header) if reset is None else reset)
            except QueryNotFound as missing:
                self._requests.fail(request, missing)

        self._buffer.flush(applied, key)

    def _committed(self, header: QueryConsumerOffsetHeader) -> int:
        """Return the offset at which a group continues. Raises `QueryNotFound`.

        A group without a committed offset starts at 0 if the queue has lost nothing yet, unless the request has
        `setZeroIfNotFound` = false. That is RocketMQ's "young topic" rule, which quick starts rely on. An empty queue
        counts as young, too. Otherwise a message could be skipped:

        1. A consumer that starts at the end of a queue learns that its group has no offset.
        2. The first message arrives.
        3. The consumer asks where the queue ends, and skips that message.
        """
        stored = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if stored is not None and stored >= 0:
            return stored
        # Read the applied state: a deletion in flight may still fail.
        topic = self._machine.state.topics.get(header.topic)
        if header.set_zero_if_not_found is not False and topic is not None:
            queue = topic.queues.get(header.queue_id)
            is_empty = queue is None and 0 <= header.queue_id < topic.queue_count
            if is_empty or (queue is not None and queue.first_offset == 0):
                return 0
        ext = {} if topic is None else {TOPIC_CREATED_FIELD: str(topic.created_position)}
        raise QueryNotFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first", ext=ext)

    def update(self, request: Request) -> None:
        """Store a consumer offset (15), lower or higher than before. Answer once the offset is applied.

        A queue beyond the topic's current queue count is accepted if it exists: consumers still finish its messages.
        """
        header = decode_ext(UpdateConsumerOffsetHeader, request.ext)
        if header.commit_offset < 0:
            request.respond()
            return
        group = header.consumer_group
        if not self._groups.has_group(group):
            if not is_system_group(group):
                raise GroupNotExist(f"consumer group {group} does not exist: create it first")
            validate_group(group)
            if not self._has_room(group):
                raise NoPermission(
                    f"{MAX_SYSTEM_GROUPS} groups that nobody has created have offsets, and {group} has none: create a "
                    "group with another name"
                )
        topic = self._machine.topic(header.topic)
        if topic is None:
            raise TopicNotExist(f"topic {header.topic} does not exist: create it first")
        if not 0 <= header.queue_id < topic.queue_count and header.queue_id not in topic.queues:
            raise NoSuchQueue(header.topic, header.queue_id, topic.queue_count)
        if header.reset and self._resets.take_commit(request, header):
            return
        key = (header.consumer_group, header.topic, header.queue_id)
        created = topic.created_position
        if self._is_of_earlier_topic(request, header, created):
            # The field is for clients that know it. Others have nothing to do.
            ext = {TOPIC_CREATED_FIELD: str(created)}
            self._requests.when_confirmed(request, lambda: request.respond(ext=ext))
            return
        if not self._resets.admits(request, key):
            # A deposed leader does not know that consumers have seen the reset.
            self._requests.when_confirmed(request, request.respond)
            return
        if self._is_overtaken(request, key, header.commit_offset) and not self._is_overtaker_lost(
            key, header.commit_offset
        ):
            self._buffer.flush(partial(self._finish_overtaken, request, key, header.commit_offset), key)
            return
        if self._may_be_overtaken(request, key, header.commit_offset):
            raise SystemBusy(
                f"offset {header.commit_offset} was passed on, is below the committed one, and an earlier version "
                "did not store who committed that: it may be an old one, commit it again"
            )
        committer = _committer(request.origin)
        if self._is_stored(key, header.commit_offset, committer):
            # A deposed leader does not know of commits that the next leader has taken.
            self._requests.when_confirmed(request, request.respond)
        elif request.is_oneway:
            self._commit(key, header.commit_offset, committer)
            request.respond()
        else:
            self._commit(key, header.commit_offset, committer, partial(self._finish_update, request))

    def _has_room(self, group: str) -> bool:
        """Return whether offsets may be stored for a group that exists without being created."""
        groups = self._offsets.system_groups
        return group in groups or len(groups) < MAX_SYSTEM_GROUPS

    def _is_of_earlier_topic(self, request: Request, header: UpdateConsumerOffsetHeader, created: int) -> bool:
        """Return whether an offset belongs to an earlier creation of its topic."""
        if header.topic_created is not None:
            return header.topic_created != created
        key = (header.consumer_group, header.topic, header.queue_id)
        return self._readers.read_earlier_creation(*key, request.origin, created)

    def _commit(self, key: Key, offset: int, committer: Committer, done: Done | None = None) -> None:
        self._buffer.commit(*key, offset, done, committer)

    def _is_overtaker_lost(self, key: Key, offset: int) -> bool:
        """Return whether no offset as high is committed or under way.

        Then the commit that overtook this commit was lost with its leadership.
        """
        return self._buffer.pending(*key) is None and not self._covers(key, offset)

    def _covers(self, key: Key, offset: int) -> bool:
        committed = self._offsets.get(*key)
        return committed is not None and committed >= offset

    def _finish_overtaken(self, request: Request, key: Key, offset: int, error: Exception | None) -> None:
        """Answer an overtaken commit, now that the outcome of the later commit is certain."""
        if error is None and not self._covers(key, offset):
            error = SystemBusy(f"a commit that overtook offset {offset} was lost: commit it again")
        self._finish_update(request, error)

    def _is_overtaken(self, request: Request, key: Key, offset: int) -> bool:
        """Return whether a commit was overtaken by a later commit.

        That happens on the way through another node, or here, while the commit waited until a majority confirmed the
        leader.
        """
        recent, now = self._offsets.recent, self._env.now()
        in_flight = self._buffer.under_way(key)
        if request.confirmed:
            last_commits = (*recent.of(key, now), *in_flight)[-1:]
            if any(commit.taken_at_s > request.received and offset < commit.offset for commit in last_commits):
                return True
        return request.is_rerouted and recent.is_overtaken(_committer(request.origin), key, offset, in_flight, now)

    def _may_be_overtaken(self, request: Request, key: Key, offset: int) -> bool:
        """Return whether a forwarded commit lowers an offset, and it is unknown whether the commit was overtaken.

        This happens only after an upgrade, while there are recent commits from a version that did not record the
        committer.
        """
        if not request.is_rerouted or self._buffer.under_way(key):
            return False
        committed = self._offsets.get(*key)
        if committed is None or offset >= committed:
            return False
        return self._offsets.recent.may_be_overtaken(key, offset, self._env.now())

    def _finish_update(self, request: Request, error: Exception | None) -> None:
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)

    def _is_stored(self, key: Key, offset: int, committer: Committer) -> bool:
        """Return whether the offset is the committed offset and no other commit is under way. Idle consumers repeat
        their last commit.

        The first repetition through another channel is stored once more. From then on, commits that arrive through the
        previous channel count as late.
        """
        if self._offsets.get(*key) != offset or self._buffer.under_way(key):
            return False
        return not self._offsets.recent.has_changed_channel(committer, key, self._env.now())

    def commit_by_pull(self, request: Request, fields: PullFields) -> None:
        """Commit the offset that a pull carries, or send the commit on to the leader without waiting.

        The node that first received the pull has already committed this offset. A forwarded pull must not commit again:
        the client may have committed a later offset meanwhile. A pull itself may overtake earlier requests of its
        channel that still wait for the leader. Its commit must not, so it is then sent behind them.
        """
        if request.is_rerouted:
            return
        if not self._group.ready or request.origin.forwards:
            self._pass_on_commit(request, fields)
            return
        if self._machine.topic(fields.topic) is None or self._groups.is_deleting(fields.consumer_group):
            return
        if is_system_group(fields.consumer_group) and not self._has_room(fields.consumer_group):
            return
        key, offset = (fields.consumer_group, fields.topic, fields.queue_id), fields.commit_offset
        try:
            if not self._resets.admits(request, key):
                return
        except SystemBusy:
            return  # The next pull carries the offset again.
        committer = _committer(request.origin)
        if not self._is_stored(key, offset, committer):
            self._commit(key, offset, committer)

    def _pass_on_commit(self, request: Request, fields: PullFields) -> None:
        if self._group.leader_id is None:
            return
        header = UpdateConsumerOffsetHeader(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset)
        command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, flag=FLAG_ONEWAY, ext=encode_ext(header))
        commit = read_request(request.origin, SerializeType.JSON, encode_json_header(command), b"", request.received)
        if commit is not None:
            if request.principal is not None:  # Nobody signed this commit, but the pull was already authorised.
                commit.principal = Principal(request.account, is_node=True)
            request.origin.in_flight += 1  # As in `own_request`.
            self._requests.pass_on(commit)

    # ---------------------------------------------------------------- of queues

    def maximum(self, request: Request) -> None:
        """Answer with the offset that the next message will get (30), or 0 for a queue that does not exist."""
        header = decode_ext(MaxOffsetHeader, request.ext)
        queue = self._queue(header.topic, header.queue_id)
        self._respond_offset(request, header.topic, 0 if queue is None else queue.max_offset)

    def minimum(self, request: Request) -> None:
        """Answer with the first kept offset (31), or 0 for a queue that does not exist."""
        header = decode_ext(QueueHeader, request.ext)
        queue = self._queue(header.topic, header.queue_id)
        self._respond_offset(request, header.topic, 0 if queue is None else queue.first_offset)

    def search(self, request: Request) -> None:
        """Answer with the first offset stored at or after a time (29)."""
        header = decode_ext(SearchOffsetHeader, request.ext)
        require_readable(header.topic)
        kind = (header.boundary_type or "LOWER").upper()
        if kind not in ("LOWER", "UPPER"):
            raise InvalidParameter(f"boundaryType {header.boundary_type!r}, expected LOWER or UPPER")
        self._requests.spawn(request, self._search(request, header, upper=kind == "UPPER"))

    async def _search(self, request: Request, header: SearchOffsetHeader, *, upper: bool) -> None:
        queue = self._queue(header.topic, header.queue_id)
        offset = 0
        if queue is not None:
            offset = await self._machine.lookup.search_offset(queue, header.timestamp, upper=upper)
        self._respond_offset(request, header.topic, offset)

    def earliest_time(self, request: Request) -> None:
        """Answer with the store time of the first kept message (32), or -1 if the queue is empty."""
        self._requests.spawn(request, self._earliest_time(request, decode_ext(QueueHeader, request.ext)))

    async def _earliest_time(self, request: Request, header: QueueHeader) -> None:
        queue = self._queue(header.topic, header.queue_id)
        timestamp = -1 if queue is None else await self._machine.lookup.earliest_store_time(queue)
        request.respond(ext=encode_ext(TimestampResponseHeader(timestamp)))

    def _respond_offset(self, request: Request, name: str, offset: int) -> None:
        topic = self._machine.state.topics.get(name)
        created = None if topic is None else topic.created_position
        request.respond(ext=encode_ext(OffsetResponseHeader(offset, created)))

    def _queue(self, topic: str, queue_id: int) -> QueueState | None:
        found = self._machine.state.topics.get(topic)
        return None if found is None else found.queues.get(queue_id)


def _committer(origin: Origin) -> Committer:
    return Committer.of(origin.key, origin.client_ids, origin.address.ip)
