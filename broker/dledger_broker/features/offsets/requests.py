"""Offsets: consumer offsets (14, 15), and the offsets and times of queues (29, 30, 31, 32)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from dledger.environment import Environment
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.offsets.recent_commits import Committer, Key
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel import rights
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Origin, Principal, Request, Requests, read_request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_json_header
from dledger_remoting.errors import GroupNotExist, InvalidParameter, QueryNotFound, SystemBusy, TopicNotExist
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
from dledger_remoting.hotpath import PullFields
from dledger_remoting.topics import is_system_group, require_readable, validate_group


class OffsetRequests(Part):
    """Answers requests about offsets, on the leader.

    `take_reset` takes a commit that says `reset`, if it returns True. `admits` says whether a commit counts in a queue
    that was reset of late, or raises `SystemBusy`; `on_query` is told who is about to learn a committed offset, and may
    know another one.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: Group,
        requests: Requests,
        groups: GroupProposals,
        commits: OffsetCommits,
    ) -> None:
        self._machine = machine
        machine.on_state(self._keep_table)
        self._env = env
        self._group = group
        self._requests = requests
        self._groups = groups
        self.commits = commits
        self._buffer = commits.buffer
        self.take_reset: Callable[[Request, UpdateConsumerOffsetHeader], bool] = _nobody_pops
        self.admits: Callable[[Request, Key], bool] = _all_count
        self.on_query: Callable[[Request, Key], int | None] = _nothing_known

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
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
        """See `Part.save`."""
        await self.commits.flush()

    # ---------------------------------------------------------------- of consumer groups

    def query(self, request: Request) -> None:
        """14: the committed offset, once commits under way are applied."""
        header = decode_ext(QueryConsumerOffsetHeader, request.ext)
        key = (header.consumer_group, header.topic, header.queue_id)

        def applied(error: Exception | None) -> None:
            if error is not None:
                self._requests.fail(request, error)
                return
            try:
                reset = self.on_query(request, key)
                _respond_offset(request, self._committed(header) if reset is None else reset)
            except QueryNotFound as missing:
                self._requests.fail(request, missing)

        self._buffer.flush(applied, key)

    def _committed(self, header: QueryConsumerOffsetHeader) -> int:
        """The offset that a group goes on at. Raises `QueryNotFound`.

        A group without one starts at the beginning of a queue that has lost nothing yet, whatever it asks for: the
        "young topic" rule, which quick starts rely on.
        """
        stored = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if stored is not None and stored >= 0:
            return stored
        if header.set_zero_if_not_found is not False:
            queue = self._queue(header.topic, header.queue_id)
            if queue is not None and queue.min_offset == 0 < queue.max_offset:
                return 0
        raise QueryNotFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")

    def update(self, request: Request) -> None:
        """15: store what the request says, lower or higher; answered when it is applied.

        A queue that a topic had before it was given fewer still has its messages, and consumers who finish them.
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
        topic = self._machine.topic(header.topic)
        if topic is None:
            raise TopicNotExist(f"topic {header.topic} does not exist: create it first")
        if not 0 <= header.queue_id < topic.queue_count and header.queue_id not in topic.queues:
            raise NoSuchQueue(header.topic, header.queue_id, topic.queue_count)
        if header.reset and self.take_reset(request, header):
            return
        key = (header.consumer_group, header.topic, header.queue_id)
        if not self.admits(request, key):
            # A leader that was deposed does not know that the reset was seen.
            self._requests.when_confirmed(request, request.respond)
            return
        if self._is_late(request, key, header.commit_offset) and not self._is_lost(key, header.commit_offset):
            self._buffer.flush(partial(self._finish_overtaken, request, key, header.commit_offset), key)
            return
        if self._may_be_late(request, key, header.commit_offset):
            raise SystemBusy(
                f"offset {header.commit_offset} was passed on, is below the committed one, and an earlier version "
                "did not store who committed that: it may be an old one, commit it again"
            )
        by = _committer(request.origin)
        if self._is_stored(key, header.commit_offset, by):
            # A leader that was deposed does not know of the commits that another one has taken since.
            self._requests.when_confirmed(request, request.respond)
        elif request.is_oneway:
            self._commit(key, header.commit_offset, by)
            request.respond()
        else:
            self._commit(key, header.commit_offset, by, partial(self._finish_update, request))

    def _commit(self, key: Key, offset: int, by: Committer, done: Done | None = None) -> None:
        self._buffer.commit(*key, offset, done, by)

    def _is_lost(self, key: Key, offset: int) -> bool:
        """True if nothing as high is committed or under way: what overtook a commit was lost with its leadership."""
        return self._buffer.pending(*key) is None and not self._covers(key, offset)

    def _covers(self, key: Key, offset: int) -> bool:
        committed = self._offsets.get(*key)
        return committed is not None and committed >= offset

    def _finish_overtaken(self, request: Request, key: Key, offset: int, error: Exception | None) -> None:
        """Answer a commit that was overtaken, now that it is known what became of the one that overtook it."""
        if error is None and not self._covers(key, offset):
            error = SystemBusy(f"a commit that overtook offset {offset} was lost: commit it again")
        self._finish_update(request, error)

    def _is_late(self, request: Request, key: Key, offset: int) -> bool:
        """True if a commit was overtaken on its way, or here, where it waited until a majority confirmed the leader."""
        recent, now = self._offsets.recent, self._env.now()
        under_way = self._buffer.under_way(key)
        if request.confirmed:
            last = (*recent.of(key, now), *under_way)[-1:]
            if any(taken.at > request.received and offset < taken.offset for taken in last):
                return True
        return request.took_a_detour and recent.is_late(_committer(request.origin), key, offset, under_way, now)

    def _may_be_late(self, request: Request, key: Key, offset: int) -> bool:
        """True if a commit that was passed on lowers an offset, and nobody knows whether it was overtaken.

        So it is while commits are recent which a leader took whose version did not tell who made them.
        """
        if not request.took_a_detour or self._buffer.under_way(key):
            return False
        committed = self._offsets.get(*key)
        if committed is None or offset >= committed:
            return False
        return self._offsets.recent.may_be_late(key, offset, self._env.now())

    def _finish_update(self, request: Request, error: Exception | None) -> None:
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)

    def _is_stored(self, key: Key, offset: int, by: Committer) -> bool:
        """True if the offset is the committed one and nothing else is under way: what an idle consumer repeats.

        The first repetition through another channel is stored once more: what comes through the one before is late now.
        """
        if self._offsets.get(*key) != offset or self._buffer.under_way(key):
            return False
        return not self._offsets.recent.moved(by, key, self._env.now())

    def commit_by_pull(self, request: Request, fields: PullFields) -> None:
        """The offset that a pull carries: committed here, or sent on to the leader without waiting.

        Whoever the pull came to first has seen to that: if it was passed on since, later commits of its client may be
        ahead of it. A pull itself overtakes what its channel still waits for; the commit must not.
        """
        if request.took_a_detour:
            return
        if not self._group.ready or request.origin.forwards:
            self._pass_on_commit(request, fields)
            return
        if self._machine.topic(fields.topic) is None or self._groups.is_deleting(fields.consumer_group):
            return
        key, offset = (fields.consumer_group, fields.topic, fields.queue_id), fields.commit_offset
        try:
            if not self.admits(request, key):
                return
        except SystemBusy:
            return  # the next pull brings it again
        by = _committer(request.origin)
        if not self._is_stored(key, offset, by):
            self._commit(key, offset, by)

    def _pass_on_commit(self, request: Request, fields: PullFields) -> None:
        if self._group.leader_id is None:
            return
        header = UpdateConsumerOffsetHeader(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset)
        command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, flag=FLAG_ONEWAY, ext=encode_ext(header))
        commit = read_request(request.origin, SerializeType.JSON, encode_json_header(command), b"", request.received)
        if commit is not None:
            if request.principal is not None:  # nobody signed this, and the pull was judged
                commit.principal = Principal(request.account, is_node=True)
            request.origin.in_flight += 1  # as `own_request` does
            self._requests.pass_on(commit)

    # ---------------------------------------------------------------- of queues

    def maximum(self, request: Request) -> None:
        """30: the offset that the next message will get; 0 for a queue that does not exist."""
        header = decode_ext(MaxOffsetHeader, request.ext)
        queue = self._queue(header.topic, header.queue_id)
        _respond_offset(request, 0 if queue is None else queue.max_offset)

    def minimum(self, request: Request) -> None:
        """31: the first kept offset; 0 for a queue that does not exist."""
        header = decode_ext(QueueHeader, request.ext)
        queue = self._queue(header.topic, header.queue_id)
        _respond_offset(request, 0 if queue is None else queue.min_offset)

    def search(self, request: Request) -> None:
        """29: the first offset stored at or after a time."""
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
        _respond_offset(request, offset)

    def earliest_time(self, request: Request) -> None:
        """32: the store time of the first kept message, -1 if there is none."""
        self._requests.spawn(request, self._earliest_time(request, decode_ext(QueueHeader, request.ext)))

    async def _earliest_time(self, request: Request, header: QueueHeader) -> None:
        queue = self._queue(header.topic, header.queue_id)
        timestamp = -1 if queue is None else await self._machine.lookup.earliest_store_time(queue)
        request.respond(ext=encode_ext(TimestampResponseHeader(timestamp)))

    def _queue(self, topic: str, queue_id: int) -> QueueState | None:
        found = self._machine.state.topics.get(topic)
        return None if found is None else found.queues.get(queue_id)


def _nobody_pops(_request: Request, _header: UpdateConsumerOffsetHeader) -> bool:
    return False


def _all_count(_request: Request, _key: Key) -> bool:
    return True


def _nothing_known(_request: Request, _key: Key) -> int | None:
    return None


def _respond_offset(request: Request, offset: int) -> None:
    request.respond(ext=encode_ext(OffsetResponseHeader(offset)))


def _committer(origin: Origin) -> Committer:
    return Committer.of(origin.key, origin.client_ids, origin.address.ip)
