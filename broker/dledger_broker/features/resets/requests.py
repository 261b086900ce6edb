"""Requests about a group's offsets: resets (222, 15 with `reset`), copies (314), and the offsets of members (223)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import NoSuchQueue
from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.offsets.recent_commits import Key
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.offsets.reset_rules import ResetRules
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.resets.changes import ResetChanges
from dledger_broker.features.resets.consumers import GroupMembers, Statuses
from dledger_broker.features.resets.table import NAME, ResetRow
from dledger_broker.kernel import rights
from dledger_broker.kernel.audit import SubjectState
from dledger_broker.kernel.leadership import LeadershipView
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

TARGETS_AT_ONCE: Final = 32
"""Maximum number of queues for which a reset looks up the target offset at the same time."""
QUEUES_A_TURN: Final = 1_024
"""Number of queues whose targets are found without a pause. A topic may have 10,000 queues."""

_logger: Final = logging.getLogger(__name__)


class Resets(Part, ResetRules):
    """Resets on one node: takes resets and copies on the leader, and makes pulls and commits follow them."""

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: LeadershipView,
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
        self._env = env
        self._group = group
        self._broker_group = config.broker_group
        self._requests = requests
        self._groups = groups
        self._buffer = offsets.commits.buffer
        self._pulls = pulls
        self._pops = pops.resets
        self._changes = changes
        self._members = members
        machine.on_state(self._keep_tables)

    @property
    def audited(self) -> Mapping[int, SubjectState]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda request: self._offset_state(
                request.ext.get("group", ""), request.ext.get("topic", "")
            ),
            RequestCode.CLONE_GROUP_OFFSET: lambda request: self._offset_state(
                request.ext.get("destGroup", ""), request.ext.get("topic", "")
            ),
        }

    def _offset_state(self, group: str, topic: str) -> object:
        """Return the offsets at which a group continues in the queues of a topic."""
        found = self._machine.topic(topic)
        queues = [] if found is None else sorted(found.queues)
        committed, pending = self._machine.state.table(OFFSETS), self._changes.table.pending
        shown: dict[str, int | None] = {}
        for queue_id in queues:
            key = group, topic, queue_id
            shown[f"{group} {topic}/{queue_id}"] = pending[key].offset if key in pending else committed.get(*key)
        return shown

    @property
    def routes(self) -> Mapping[int, Route]:
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
        count = self._count_pending
        return (Gauge("pending_resets", "Queues of groups whose reset no consumer has seen yet", count),)

    def _count_pending(self) -> float:
        return len(self._changes.table.pending)

    def unready(self, error: NotLeaderError) -> None:
        _ = error
        self._changes.forget_notified()

    def _keep_tables(self, state: BrokerState) -> None:
        self._offsets = state.table(OFFSETS)
        self._changes.table.on_reset = self._release_pulls

    # ---------------------------------------------------------------- resets

    def reset(self, request: Request) -> None:
        """Reset a group to other offsets (222).

        The answer has these offsets, once they are applied and members are notified (220).
        """
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
        targets: dict[int, int] = {}
        batch_size = TARGETS_AT_ONCE if header.timestamp > AT_END else 1  # Only a time needs a lookup.
        for start in range(0, len(queue_ids), batch_size):
            if start % QUEUES_A_TURN == 0:
                await asyncio.sleep(0)
            batch = queue_ids[start : start + batch_size]
            if batch_size == 1:
                targets[batch[0]] = await self._target(topic, batch[0], header)
                continue
            offsets = await asyncio.gather(*(self._target(topic, queue_id, header) for queue_id in batch))
            targets |= zip(batch, offsets, strict=True)
        self._require_lasting(header.group, topic)
        self._move(request, header.group, topic, targets, header.timestamp)

    def _require_lasting(self, group: str, topic: TopicState) -> None:
        """Refuse a reset if the group or topic is gone, or being deleted, after a wait.

        Without this check:

        1. The deletion of a group with its offsets is proposed.
        2. The reset follows, and is applied after the deletion.
        3. The next group with this name begins where the deleted group was reset to.
        """
        name = topic.config.topic_name
        if topic.dropped or self._machine.topic(name) is None:
            raise TopicNotExist(f"topic {name} was deleted meanwhile")
        if not self._groups.has_group(group):
            raise GroupNotExist(f"consumer group {group} was deleted meanwhile")

    async def _target(self, topic: TopicState, queue_id: int, header: ResetOffsetHeader) -> int:
        queue = topic.queue(queue_id)
        if header.offset is not None and header.offset >= 0:
            if not queue.first_offset <= header.offset <= queue.max_offset:
                raise ServerError(
                    f"Target offset {header.offset} not in consume queue range "
                    f"[{queue.first_offset}-{queue.max_offset}] of {header.topic}/{queue_id}"
                )
            return header.offset
        if header.timestamp < AT_END:
            raise InvalidParameter(f"timestamp {header.timestamp}: expected ms since 1970, or -1 for the end")
        at_end = header.timestamp == AT_END
        target = queue.max_offset if at_end else await self._machine.lookup.search_offset(queue, header.timestamp)
        target = max(target, queue.first_offset)  # not `min_offset`: other nodes may keep what this leader lacks
        committed = self._committed((header.group, header.topic, queue_id))
        return target if header.is_force or committed is None else min(target, committed)

    def _committed(self, key: Key) -> int | None:
        in_flight = self._buffer.pending(*key)
        return self._offsets.get(*key) if in_flight is None else in_flight

    def take_commit(self, request: Request, header: UpdateConsumerOffsetHeader) -> bool:
        """Take a commit (15) with `reset` for one queue of a group.

        Return False and do nothing if resets are not active and the group does not pop the queue.
        """
        topic = self._machine.topic(header.topic)
        if topic is None or not self._machine.is_active(NAME):
            return self._pops.take(request, header)
        self._move(request, header.consumer_group, topic, {header.queue_id: header.commit_offset}, None)
        return True

    def _move(
        self, request: Request, group: str, topic: TopicState, targets: Mapping[int, int], timestamp: int | None
    ) -> None:
        """Have a group continue at other offsets. In queues that it pops, its deliveries end."""
        name = topic.config.topic_name
        popped = dict.fromkeys(queue_id for queue_id in targets if self._pops.pops((group, name, queue_id)))
        pulled = [
            ResetRow(name, topic.created_position, queue_id, offset)
            for queue_id, offset in targets.items()
            if queue_id not in popped
        ]
        self._changes.require_room(group, pulled)
        expected = len(popped) + bool(pulled)
        outcomes: list[LogError | None] = []

        def on_settled(error: LogError | None) -> None:
            outcomes.append(error)
            if len(outcomes) < expected:
                return
            first_error = next(filter(None, outcomes), None)
            if first_error is not None:
                self._requests.fail(request, first_error)
                return
            _logger.info("event=group_reset group=%r topic=%r queues=%d", group, name, len(targets))
            # Call this after the present turn, which applies the whole reset.
            self._env.call_soon(notify_and_answer)

        def notify_and_answer() -> None:
            offsets = {MessageQueue(self._broker_group, queue_id, name): offset for queue_id, offset in targets.items()}
            self._members.tell(group, name, AT_END if timestamp is None else timestamp, offsets)
            request.respond(body=b"" if timestamp is None else encode_reset(offsets))

        if not expected:
            raise InvalidParameter(f"topic {name} has no queues that can be read")
        for queue_id in popped:
            self._pops.reset((group, name, queue_id), topic, targets[queue_id], on_settled)
        if pulled:
            self._changes.reset(group, pulled, on_settled)

    # ---------------------------------------------------------------- copies

    def clone(self, request: Request) -> None:
        """Copy the offsets of one group to another group, in a topic or in all topics (314)."""
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
            except InvalidParameter as refusal:
                self._requests.fail(request, refusal)
                return
            self._changes.reset(target, rows, partial(self._on_cloned, request, target, rows))
        else:
            request.respond()

    def _on_cloned(self, request: Request, group: str, rows: Sequence[ResetRow], error: LogError | None) -> None:
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
        """Answer with the offsets that each member of a group, or the named member, reports (223, 221)."""
        header = decode_ext(ConsumerStatusHeader, request.ext)

        def on_answers(status_table: Statuses) -> None:
            self._requests.respond(request, encode_statuses(status_table))

        if not self._members.ask(header.group, header.topic, header.client_addr or "", on_answers):
            raise ServerError(f"No Any Consumer online in the consumer group: [{header.group}]")

    # ---------------------------------------------------------------- pulls and commits

    def take_pull(self, request: Request, fields: PullFields) -> bool:
        """Answer a pull of a queue that is reset. Return False and do nothing if its consumer knows of the reset."""
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
        if not request.confirmed:
            # 1. A leader is stopped. The next leader resets the group again, and its member goes on there.
            # 2. The former leader wakes up, and answers the member's pull before it hears of the next one.
            # 3. It sends the member to the earlier reset. The next leader takes its commits, as it knows of the newer.
            self._requests.confirm(request)
            return True
        self._changes.tell(key, request.origin)
        self._pulls.answers.reset(request, fields, pending.offset)
        return True

    def offset_told(self, request: Request, key: Key) -> int | None:
        """Return the offset of a reset that a client is told of, None if there is none."""
        return self._changes.tell(key, request.origin)

    def admits(self, request: Request, key: Key) -> bool:
        """Return whether a commit counts in a queue that was reset recently. Raises `SystemBusy`."""
        return self._changes.admits(request, key)

    def _release_pulls(self, keys: set[Key]) -> None:
        """Answer pulls that wait in queues that were reset, so that their clients pull again."""
        self._pulls.held.release_queues(keys)
