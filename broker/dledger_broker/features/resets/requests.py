"""Requests about where groups go on: resets (222, and 15 that says so), copies (314), where members are (223)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from dledger.errors import LogError, NotLeaderError
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.offsets.recent_commits import Key
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.resets.changes import ResetChanges
from dledger_broker.features.resets.consumers import GroupMembers, Statuses
from dledger_broker.features.resets.table import NAME, ResetRow
from dledger_broker.kernel import rights
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import GroupNotExist, InvalidParameter, ServerError, TopicNotExist
from dledger_remoting.headers import UpdateConsumerOffsetHeader, decode_ext
from dledger_remoting.hotpath import PullFields
from dledger_remoting.resets import (
    AT_END,
    CloneOffsetHeader,
    ConsumerStatusHeader,
    ResetOffsetHeader,
    encode_reset,
    encode_statuses,
)
from dledger_remoting.topics import MessageQueue, require_readable, validate_group

_logger: Final = logging.getLogger(__name__)


class Resets(Part):
    """A node's part: takes resets and copies on the leader, and keeps pulls and commits in step with them."""

    def __init__(
        self,
        machine: BrokerMachine,
        group: Group,
        config: BrokerConfig,
        requests: Requests,
        groups: GroupProposals,
        offsets: OffsetRequests,
        pulls: PullRequests,
        pops: PopRequests,
        changes: ResetChanges,
        members: GroupMembers,
    ) -> None:
        self._machine = machine
        self._group = group
        self._broker_group = config.broker_group
        self._requests = requests
        self._groups = groups
        self._buffer = offsets.commits.buffer
        self._pulls = pulls
        self._pops = pops.resets
        self._changes = changes
        self._members = members
        offsets.take_reset = self.take_commit
        offsets.admits = self._admits
        offsets.on_query = self._tell
        pulls.take_over = self.take_pull
        machine.on_state(self._keep_tables)

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Route(self.reset, Needs.LEADER, CHANGES),
            RequestCode.CLONE_GROUP_OFFSET: Route(self.clone, Needs.LEADER, CHANGES),
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Route(
                self.status,
                Needs.LEADER,
                NO_EFFECT,
                rights=(rights.topic("topic", Action.GET), rights.group("group", Action.GET)),
            ),
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        count = self._count_pending
        return (Gauge("pending_resets", "Queues of groups that are reset where no consumer has seen it", count),)

    def _count_pending(self) -> float:
        return len(self._changes.table.pending)

    def _keep_tables(self, state: BrokerState) -> None:
        self._offsets = state.table(OFFSETS)
        self._changes.table.on_reset = self._let_go

    # ---------------------------------------------------------------- resets

    def reset(self, request: Request) -> None:
        """222: answered with where the group goes on, when that is applied; its members are told then (220)."""
        header = decode_ext(ResetOffsetHeader, request.ext)
        require_readable(header.topic)
        topic = self._machine.topic(header.topic)
        if topic is None:
            raise TopicNotExist(f"topic {header.topic} does not exist: create it first")
        if not self._groups.has_group(header.group):
            raise GroupNotExist(f"consumer group {header.group} does not exist: create it first")
        if header.queue_id >= topic.config.read_queue_nums:
            raise NoSuchQueue(header.topic, header.queue_id, topic.config.read_queue_nums)
        self._requests.spawn(request, self._reset(request, header, topic))

    async def _reset(self, request: Request, header: ResetOffsetHeader, topic: TopicState) -> None:
        queue_ids = range(topic.config.read_queue_nums) if header.queue_id < 0 else [header.queue_id]
        wanted = {queue_id: await self._target(topic, queue_id, header) for queue_id in queue_ids}
        self._require_lasting(header.group, topic)
        self._move(request, header.group, topic, wanted, header.timestamp)

    def _require_lasting(self, group: str, topic: TopicState) -> None:
        """Look at a group and a topic again after a wait: one that is gone, or whose deletion is in flight, is refused.

        1. The deletion of a group with its offsets is proposed. 2. The reset follows, and is applied behind it. 3. The
        group that is made next under this name begins where the one that is gone was reset to.
        """
        name = topic.config.topic_name
        if topic.dropped or self._machine.topic(name) is None:
            raise TopicNotExist(f"topic {name} was deleted meanwhile")
        if not self._groups.has_group(group):
            raise GroupNotExist(f"consumer group {group} was deleted meanwhile")

    async def _target(self, topic: TopicState, queue_id: int, header: ResetOffsetHeader) -> int:
        queue = topic.queue(queue_id)
        if header.offset is not None and header.offset >= 0:
            if not queue.min_offset <= header.offset <= queue.max_offset:
                raise ServerError(
                    f"Target offset {header.offset} not in consume queue range "
                    f"[{queue.min_offset}-{queue.max_offset}] of {header.topic}/{queue_id}"
                )
            return header.offset
        if header.timestamp < AT_END:
            raise InvalidParameter(f"timestamp {header.timestamp}: expected ms since 1970, or -1 for the end")
        at_end = header.timestamp == AT_END
        target = queue.max_offset if at_end else await self._machine.lookup.search_offset(queue, header.timestamp)
        target = max(target, queue.min_offset)
        now = self._committed((header.group, header.topic, queue_id))
        return target if header.is_force or now is None else min(target, now)

    def _committed(self, key: Key) -> int | None:
        on_its_way = self._buffer.pending(*key)
        return self._offsets.get(*key) if on_its_way is None else on_its_way

    def take_commit(self, request: Request, header: UpdateConsumerOffsetHeader) -> bool:
        """Take a commit (15) that says `reset`, for a group's one queue; False, and nothing done, if it is plain."""
        topic = self._machine.topic(header.topic)
        if topic is None or not self._machine.is_active(NAME):
            return self._pops.take(request, header)
        self._move(request, header.consumer_group, topic, {header.queue_id: header.commit_offset}, None)
        return True

    def _move(
        self, request: Request, group: str, topic: TopicState, wanted: Mapping[int, int], timestamp: int | None
    ) -> None:
        """Have a group go on elsewhere: in queues that it pops what it has popped there ends."""
        name = topic.config.topic_name
        offsets = {MessageQueue(self._broker_group, queue_id, name): offset for queue_id, offset in wanted.items()}
        pulled = [
            ResetRow(name, topic.created_position, queue_id, offset)
            for queue_id, offset in wanted.items()
            if not self._pops.pops((group, name, queue_id))
        ]
        self._changes.require_room(group, pulled)
        popped = [queue_id for queue_id in wanted if self._pops.pops((group, name, queue_id))]
        left = len(popped) + bool(pulled)
        outcomes: list[LogError | None] = []

        def settled(error: LogError | None) -> None:
            outcomes.append(error)
            if len(outcomes) < left:
                return
            failed = next(filter(None, outcomes), None)
            if failed is not None:
                self._requests.fail(request, failed)
                return
            _logger.info("event=group_reset group=%r topic=%r queues=%d", group, name, len(wanted))
            self._members.tell(group, name, AT_END if timestamp is None else timestamp, offsets)
            request.respond(body=b"" if timestamp is None else encode_reset(offsets))

        if not left:
            raise InvalidParameter(f"topic {name} has no queues that can be read")
        for queue_id in popped:
            self._pops.reset((group, name, queue_id), topic, wanted[queue_id], settled)
        if pulled:
            self._changes.reset(group, pulled, settled)

    # ---------------------------------------------------------------- copies

    def clone(self, request: Request) -> None:
        """314: one group goes on where another one is, in a topic or in all of them."""
        header = decode_ext(CloneOffsetHeader, request.ext)
        validate_group(header.dest_group)
        self._buffer.flush(partial(self._clone, request, header))

    def _clone(self, request: Request, header: CloneOffsetHeader, error: Exception | None) -> None:
        source, target = header.src_group, header.dest_group
        if error is None and self._groups.is_deleting(target):
            error = ServerError(f"group {target} is being deleted: nothing was copied, try again once it is gone")
        if error is not None:
            self._requests.fail(request, error)
            return
        names = [header.topic] if header.topic else [topic for group, topic in self._offsets.pairs() if group == source]
        if not header.offline and self._members.is_online(source):
            names = [name for name in names if self._members.subscribes(source, name)]
        rows = [
            ResetRow(name, topic.created_position, queue_id, offset)
            for name in names
            if (topic := self._machine.topic(name)) is not None
            for queue_id, offset in self._offsets.of(source, name).items()
        ]
        if any(self._pops.pops((target, row.topic, row.queue_id)) for row in rows):
            self._requests.fail(request, ServerError(f"group {target} pops queues of {source}: reset it instead"))
        elif rows:
            try:
                self._changes.require_room(target, rows)
            except InvalidParameter as refused:
                self._requests.fail(request, refused)
                return
            self._changes.reset(target, rows, partial(self._cloned, request, target, rows))
        else:
            request.respond()

    def _cloned(self, request: Request, group: str, rows: Sequence[ResetRow], error: LogError | None) -> None:
        if error is not None:
            self._requests.fail(request, error)
            return
        for name in dict.fromkeys(row.topic for row in rows):
            offsets = {
                MessageQueue(self._broker_group, row.queue_id, name): row.offset for row in rows if row.topic == name
            }
            self._members.tell(group, name, AT_END, offsets)
        request.respond()

    # ---------------------------------------------------------------- where members are

    def status(self, request: Request) -> None:
        """223: what each member of a group, or the one that is named, says of where it is (221)."""
        header = decode_ext(ConsumerStatusHeader, request.ext)

        def answered(found: Statuses) -> None:
            self._requests.respond(request, encode_statuses(found))

        if not self._members.ask(header.group, header.topic, header.client_addr or "", answered):
            raise ServerError(f"No Any Consumer online in the consumer group: [{header.group}]")

    # ---------------------------------------------------------------- pulls and commits

    def take_pull(self, request: Request, fields: PullFields) -> bool:
        """Answer a pull of a queue that is reset; False, and nothing done, if its consumer knows of that."""
        key = (fields.consumer_group, fields.topic, fields.queue_id)
        pending = self._changes.table.pending.get(key)
        if pending is None:
            return False
        if not self._group.ready:
            self._requests.fail(request, NotLeaderError(None, 0, "the leader says where a group that is reset goes on"))
            return True
        if self._changes.has_seen(key, pending, request.origin, fields.queue_offset):
            return False
        if self._members.is_dropping(key[0], request.origin):
            return False
        self._changes.tell(key, request.origin)
        self._pulls.answer_reset(request, fields, pending.offset)
        return True

    def _tell(self, request: Request, key: Key) -> int | None:
        return self._changes.tell(key, request.origin)

    def _admits(self, request: Request, key: Key) -> bool:
        return self._changes.admits(request, key)

    def _let_go(self, keys: set[Key]) -> None:
        """Pulls that wait in queues that were reset are repeated."""
        self._pulls.held.release_queues(keys)
