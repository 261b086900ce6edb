"""Administration of topics, groups and offsets, and search for single messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from dledger_remoting.audit import AuditLine
from dledger_remoting.bodies import TopicList, encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import InvalidParameter, RemotingError, error_from_response
from dledger_remoting.headers import (
    BrokerNameHeader,
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    DeleteTopicHeader,
    PinHeader,
    PinNameHeader,
    PinResponseHeader,
    QueryMessageHeader,
    TopicHeader,
    TopicInClusterHeader,
    TopicOfGroupHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.headers_range import DEFAULT_LEASE_MS
from dledger_remoting.leaders import LeaderChangeRow
from dledger_remoting.quotas import Quota, QuotaRow
from dledger_remoting.range_reads import PinList, PinRow
from dledger_remoting.route import BrokerData, ClusterInfo
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import (
    AUTO_CREATE_TOPIC,
    DEFAULT_TOPIC_QUEUES,
    PERM_READ_WRITE,
    TRACE_TOPIC,
    SubscriptionGroupConfig,
    TopicConfig,
    is_readable,
    is_system_topic,
    is_writable,
    validate_group,
    validate_topic,
)
from dledger_remoting.traces import Trace, traces_about
from dledger_remoting.waiting import DelayedRows, HalfRows

from .administration.cluster_calls import (
    INCLUDE_ABSENT,
    ClusterCalls,
    Opening,
    absence,
    clone_group,
    decode,
    live_settings,
    put_quota,
    quotas,
    reset_group,
    set_live,
)
from .administration.groups import (
    GroupMember,
    QueueReader,
    QueueStatus,
    RunningConsumer,
    ask_readers,
    ask_running,
    delays_of,
    members_of,
    progress_of,
)
from .administration.lookups import MAX_MESSAGES_BY_KEY, MAX_TIMESTAMP_MS, message_by_id, messages_by_key
from .administration.node_calls import (
    ConnectedProducer,
    audit_lines,
    configurations,
    delayed_messages,
    hand_over,
    leader_changes,
    open_halves,
    producers,
)
from .administration.topic_statistics import TopicStatistics, consumers_in, statistics_of
from .arguments import checked
from .cluster.core import ATTEMPT_SECONDS, check_response
from .cluster.routes import TopicRoute
from .consuming.offsets import QueueOffsets, StartFrom, check_start
from .errors import (
    GroupInUseError,
    InvalidArgumentError,
    NoBrokerError,
    RefusedError,
    refusal,
)
from .messages import MessageQueue, ReceivedMessage
from .tls import Tls

BodyT = TypeVar("BodyT")

DEFAULT_TIMEOUT_SECONDS: Final = 10.0

_NOT_ONLINE_CODES: Final = frozenset({int(ResponseCode.CONSUMER_NOT_ONLINE)})
_TOPIC_NOT_FOUND_CODES: Final = frozenset({int(ResponseCode.TOPIC_NOT_EXIST)})


class _GroupTable(msgspec.Struct, frozen=True):
    """Answer to 201."""

    groups: dict[str, SubscriptionGroupConfig] = msgspec.field(name="subscriptionGroupTable", default_factory=dict)


@checked
class Admin:
    """Administrator over the ordinary client protocol. Use it as an async context manager.

        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=8)

    Requests are repeated for up to `timeout` seconds. All requests can be repeated without harm. They raise
    `RefusedError`, its subclass `NotFoundError` for missing things, `NoRouteError` for unknown topics, `NoBrokerError`
    and `DeadlineError`.

    A broker group is *absent* if it was registered, and none of its nodes is registered now. Until a node registers
    again, requests to all broker groups raise `NoBrokerError` and change nothing. `forget_group` declares an absent
    group permanently gone.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._opening = Opening("Admin", name_servers, timeout, credentials, tls)

    async def start(self) -> None:
        """Open for requests."""
        self._opening.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._opening.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Cluster.

    async def cluster_info(self) -> ClusterInfo:
        """Return all broker groups with the addresses of their nodes (id 0 is the leader), and their names by cluster.

        An absent group has no address.
        """
        return await self._calls.cluster_info()

    async def broker_groups(self) -> dict[str, BrokerData]:
        """Return the broker groups by name."""
        return (await self.cluster_info()).broker_addr_table

    async def forget_group(self, name: str) -> None:
        """Tell all name servers that an absent broker group is permanently gone, with all its messages.

        Keys of its queues go to other queues from then on. Raises `RefusedError` if the group has registered nodes,
        `NotFoundError` if no name server knows it.
        """
        header = encode_ext(BrokerNameHeader(broker_name=name))
        answers = await self._calls.tell_name_servers(RequestCode.DLEDGER_FORGET_GROUP, header)
        known_answers = [answer for answer in answers if answer.code != ResponseCode.QUERY_NOT_FOUND]
        for answer in known_answers or answers[:1]:
            check_response(answer)

    # Topics.

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_TOPIC_QUEUES,
        perm: int = PERM_READ_WRITE,
        broker_groups: Sequence[str] | None = None,
        attributes: Mapping[str, str | None] | None = None,
        order: bool = False,
        filter_type: str = "SINGLE_TAG",
        sys_flag: int = 0,
    ) -> None:
        """Create a topic with `queues` queues on each broker group (all by default), or change its configuration.

        `attributes` are set, or removed where the value is None; others stay. `{"idempotent": "true"}` makes all sends
        to the topic idempotent. Every other setting is set to its argument; to keep one, pass the value that
        `topic_config` shows. The service does not use the last three arguments, but other clients may.

        Returns when the leaders have stored the topic and the name server shows it.
        """
        _validate(validate_topic, topic)
        header = CreateTopicHeader(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type=filter_type,
            topic_sys_flag=sys_flag,
            order=order,
            attributes=",".join(
                f"-{name}" if value is None else f"+{name}={value}" for name, value in (attributes or {}).items()
            ),
        )
        names = await self._calls.group_names(broker_groups)
        await self._calls.ask_leaders(names, RequestCode.UPDATE_AND_CREATE_TOPIC, encode_ext(header))
        queue_counts = (queues if is_readable(perm) else 0, queues if is_writable(perm) else 0)
        await self._calls.core.routes.wait_until_shown(
            topic, dict.fromkeys(names, queue_counts), self._calls.deadline()
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on all broker groups, and its route on all name servers.

        All name servers are told. Afterwards the error of the first that could not be told is raised.
        """
        header = encode_ext(DeleteTopicHeader(topic=topic))
        await self._calls.ask_leaders(await self._calls.group_names(None), RequestCode.DELETE_TOPIC_IN_BROKER, header)
        core = self._calls.core
        core.routes.forget(topic)
        for answer in await self._calls.tell_name_servers(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, encode_ext(TopicInClusterHeader(topic=topic))
        ):
            check_response(answer)

    async def topics(self, *, include_system: bool = False) -> list[str]:
        """Return the sorted names of all topics. The service's own topics are left out unless `include_system`."""
        response = await self._calls.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, INCLUDE_ABSENT)
        names = decode(TopicList, response.body).topic_list
        return sorted(name for name in names if include_system or not is_system_topic(name))

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return the readable and writable queues of a topic as they are now.

        Raises `NoBrokerError` if all its broker groups are absent.
        """
        route = await self._calls.core.routes.refresh(topic, self._calls.deadline())
        if not (route.readable or route.writable) and (absent := route.absent_readable or route.absent_writable):
            raise NoBrokerError(absence(sorted({queue.broker_group for queue in absent})))
        return route

    async def _whole_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, all of whose broker groups must be present. Raises `NoBrokerError`."""
        route = await self.topic_route(topic)
        absent = {queue.broker_group for queue in route.absent_readable}
        if absent:
            raise NoBrokerError(absence(sorted(absent)))
        return route

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's configuration by broker group."""
        answers = await self._ask_holders(topic, RequestCode.GET_TOPIC_CONFIG)
        return {name: decode(TopicConfig, answer.body) for name, answer in answers.items()}

    async def topic_statistics(self, topic: str) -> TopicStatistics:
        """Return what the queues of a topic keep, and how many messages come. Sends one request to each leader.

        Raises `NotFoundError` if no broker group has the topic.
        """
        return statistics_of(await self._ask_holders(topic, RequestCode.GET_TOPIC_STATS_INFO))

    async def topic_consumers(self, topic: str) -> list[str]:
        """Return the sorted groups that consume a topic: their members subscribe to it, or they have offsets on it."""
        return consumers_in(await self._ask_holders(topic, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO))

    async def _ask_holders(self, topic: str, code: int) -> dict[str, RemotingCommand]:
        """Return the answers about a topic of the leaders that have it. Raises `NotFoundError` if none has it."""
        header = encode_ext(TopicHeader(topic=topic))
        answers = await self._calls.ask_leaders(
            await self._calls.group_names(None), code, header, accept=_TOPIC_NOT_FOUND_CODES
        )
        holders = {name: answer for name, answer in answers.items() if answer.code == ResponseCode.SUCCESS}
        if not holders:
            raise _make_not_found_error(f"topic {topic!r} does not exist")
        return holders

    # Groups.

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups by name."""
        answers = await self._calls.ask_leaders(
            await self._calls.group_names(None), RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, {}
        )
        configs: dict[str, SubscriptionGroupConfig] = {}
        for answer in answers.values():
            configs.update(decode(_GroupTable, answer.body).groups)
        return dict(sorted(configs.items()))

    async def create_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a consumer group on all broker groups, or change its configuration."""
        _validate(validate_group, config.group_name)
        await self._calls.ask_leaders(
            await self._calls.group_names(None),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
            {},
            encode_body(config),
        )

    async def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a consumer group on all broker groups, with its committed offsets if `clean_offsets`.

        Raises `GroupInUseError`, and deletes nothing, while the group has members: their next heartbeat would create it
        again.
        """
        await self._require_no_members(group)
        header = DeleteSubscriptionGroupHeader(group_name=group, clean_offset=clean_offsets)
        await self._calls.ask_leaders(
            await self._calls.group_names(None), RequestCode.DELETE_SUBSCRIPTION_GROUP, encode_ext(header)
        )

    async def members(self, group: str) -> list[GroupMember]:
        """Return the present members of a consumer group by client id. A client that vanished counts for 2 minutes."""
        header = encode_ext(ConsumerGroupHeader(consumer_group=group))
        names = await self._calls.group_names(None)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        return members_of(await self._calls.ask_leaders(names, code, header, accept=_NOT_ONLINE_CODES))

    async def readers(self, group: str) -> dict[MessageQueue, QueueReader]:
        """Return the client that last asked for messages of each queue, within 2 minutes, as seen by the nodes that
        answer.
        """
        core, names = self._calls.core, await self._calls.group_names(None)
        return await ask_readers(core, names, group, min(self._calls.deadline(), core.loop.time() + ATTEMPT_SECONDS))

    async def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningConsumer:
        """Return what a member of a consumer group says of itself (307), with the stacks of its threads and tasks.

        Raises `RefusedError` if there is no such member, or it does not answer.
        """
        return await ask_running(self._calls, group, client_id, stacks=stacks)

    async def producers(self) -> list[ConnectedProducer]:
        """Return the clients of all producer groups that nodes have heard of, by group and client id.

        Nodes that do not answer within seconds are left out.
        """
        return await producers(self._calls)

    async def _require_no_members(self, group: str) -> None:
        if members := await self.members(group):
            raise GroupInUseError(group, [str(member) for member in members])

    async def _require_no_broadcasters(self, group: str) -> None:
        """Raise `GroupInUseError` if members broadcast.

        They keep their own offsets, which the group's offsets do not move.
        """
        if broadcasting := [str(member) for member in await self.members(group) if member.broadcast]:
            raise GroupInUseError(group, broadcasting)

    # Offsets.

    async def progress(self, group: str, topic: str | None = None) -> list[QueueStatus]:
        """Return a group's progress in the queues of a topic, or of all topics to which its members subscribe.

        Its retry topics are included. Without members, the topics are those in which the group has committed. Brokers
        report nothing about a topic to which its members no longer subscribe. Sends one request to each leader.
        """
        header = encode_ext(ConsumeStatsHeader(consumer_group=group, topic=topic))
        return progress_of(
            await self._calls.ask_leaders(await self._calls.group_names(None), RequestCode.GET_CONSUME_STATS, header)
        )

    async def delays(self, group: str, topic: str) -> dict[MessageQueue, float]:
        """Return how long ago, in seconds, the next message of a group was stored, in each queue of a topic.

        It is 0 for a queue that the group has read to its end. Raises `NoRouteError` for an unknown topic.
        """
        header = encode_ext(TopicOfGroupHeader(topic=topic, group=group))
        names = sorted({queue.broker_group for queue in (await self._whole_route(topic)).readable})
        return delays_of(await self._calls.ask_leaders(names, RequestCode.QUERY_CONSUME_TIME_SPAN, header))

    async def offsets(self, group: str, topic: str) -> list[QueueStatus]:
        """Return first, end and committed offset of every readable queue of a topic, sorted by queue."""
        route = await self._whole_route(topic)
        return list(await asyncio.gather(*(self._queue_status(group, queue) for queue in route.readable)))

    async def set_offset(self, group: str, queue: tuple[str, str, int], offset: int) -> None:
        """Move a group to an offset of a queue. A member that reads the queue continues there.

        Messages of the queue that a group of `SimpleConsumer`s took and has not acknowledged are no longer taken.
        Raises `GroupInUseError`, and moves nothing, while the group has members that broadcast.
        """
        target = MessageQueue(*queue)
        if offset < 0:
            raise InvalidArgumentError(f"offset {offset} of {target} is below 0")
        await self._require_no_broadcasters(group)
        await self._calls.core.routes.get(target.topic, self._calls.deadline())
        await self._queue_offsets().commit(group, target, offset, self._calls.deadline(), reset=True)

    async def reset_offsets(
        self, group: str, topic: str, to: StartFrom, *, queue_id: int | None = None
    ) -> dict[MessageQueue, int]:
        """Move a group to `"first"`, to `"last"`, or to the first messages stored at or after a time in ms since 1970.

        It is moved in all queues of a topic, or in those with the number `queue_id`. Returns the new offsets. Nothing
        is moved before every broker group has reported its new offsets. Members continue there, and their earlier reads
        no longer count.

        Raises `GroupInUseError`, and moves nothing, while the group has members that broadcast: their offsets are their
        own. Raises it also if the group has members, and a broker's version cannot notify them. Other broker groups may
        have moved the group by then.
        """
        check_start(to)
        await self._require_no_broadcasters(group)
        route = await self._whole_route(topic)
        queues = [queue for queue in route.readable if queue_id in (None, queue.queue_id)]
        offsets = self._queue_offsets()
        target_offsets = {queue: await offsets.at(queue, to, self._calls.deadline()) for queue in queues}
        names = sorted({queue.broker_group for queue in queues})
        moved = await reset_group(self._calls, group, topic, to, names, -1 if queue_id is None else queue_id)
        if moved is not None:
            return moved
        await self._require_no_members(group)
        for queue, offset in target_offsets.items():
            await offsets.commit(group, queue, offset, self._calls.deadline(), reset=True)
        return target_offsets

    async def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Give one group the offsets of another, in one topic or in all topics in which the other has committed.

        Members of `target` continue there. Raises `RefusedError` if `target` pops some of these queues,
        `GroupInUseError` if it has members that broadcast.
        """
        _validate(validate_group, target)
        await self._require_no_broadcasters(target)
        await clone_group(self._calls, source, target, topic)

    async def first_offset(self, queue: tuple[str, str, int]) -> int:
        """Return the offset of a queue's first kept message."""
        target = await self._locate_queue(queue)
        return await self._queue_offsets().first(target, self._calls.deadline())

    async def end_offset(self, queue: tuple[str, str, int]) -> int:
        """Return the offset that a queue's next message will get."""
        target = await self._locate_queue(queue)
        return await self._queue_offsets().end(target, self._calls.deadline())

    # Pins.

    async def pins(self) -> dict[str, list[PinRow]]:
        """Return the pins that keep parts of the log, by broker group."""
        answers = await self._calls.ask_leaders(await self._calls.group_names(None), RequestCode.LIST_PINS, {})
        return {name: decode(PinList, answer.body).pins for name, answer in answers.items()}

    async def pin(
        self, name: str, position: int, *, broker_group: str, lease_seconds: float = DEFAULT_LEASE_MS / 1000
    ) -> int:
        """Keep a broker group's log from a position on, or renew such a pin. Returns its end, in ms since 1970.

        The lease, at most an hour, starts anew with every call, and with range reads that name the pin.
        """
        header = PinHeader(name=name, position=position, lease_millis=int(lease_seconds * 1000))
        names = await self._calls.group_names([broker_group])
        answers = await self._calls.ask_leaders(names, RequestCode.PIN_LOG, encode_ext(header))
        try:
            return decode_ext(PinResponseHeader, answers[broker_group].ext).expires
        except RemotingError as error:
            raise refusal(error) from error

    async def unpin(self, name: str, *, broker_groups: Sequence[str] | None = None) -> None:
        """Remove a pin on some broker groups, on all by default. It need not exist."""
        header = encode_ext(PinNameHeader(name=name))
        await self._calls.ask_leaders(await self._calls.group_names(broker_groups), RequestCode.UNPIN_LOG, header)

    # Settings.

    async def settings(self, *, broker_groups: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """Return the settings that are set for whole broker groups, as texts by key, by broker group."""
        return await live_settings(self._calls, await self._calls.group_names(broker_groups))

    async def put_settings(self, values: Mapping[str, str], *, broker_groups: Sequence[str] | None = None) -> None:
        """Set keys of the configuration on all nodes of some broker groups, of all by default, while they run.

        An empty text removes a setting, so that each node's own configuration applies again. A group sets all keys or
        none. Raises `RefusedError` for keys that cannot be set while nodes run, and for values that are not allowed.
        """
        await set_live(self._calls, values, await self._calls.group_names(broker_groups))

    # Leaders.

    async def leader_changes(self, broker_group: str) -> dict[str, list[LeaderChangeRow]]:
        """Return the leaders that each node of a broker group has seen since its start, with reasons, by node id.

        Nodes that do not answer, or are of a version that does not tell, are left out.
        """
        return await leader_changes(self._calls, broker_group)

    async def hand_over(self, broker_group: str, node_id: str) -> None:
        """Have the leader of a broker group hand over to a voter. Returns once that has begun; it may still fail.

        Raises `RefusedError` for a node that is no voter, or cannot take over now.
        """
        await hand_over(self._calls, broker_group, node_id)

    async def audit_lines(self, broker_group: str, *, word: str = "") -> dict[str, list[AuditLine]]:
        """Return the newest lines of the audit log of each node of a broker group, the newest first, by node id.

        With a `word` only lines that contain it are returned. Nodes that do not answer, or are of a version that does
        not tell, are left out.
        """
        return await audit_lines(self._calls, broker_group, word)

    async def configurations(self, broker_group: str) -> dict[str, Mapping[str, str]]:
        """Return the configuration in effect on each node of a broker group, as texts by name, by address.

        RocketMQ's keys have their names there, all others ours. Nodes that do not answer are left out.
        """
        return await configurations(self._calls, broker_group)

    # Quotas.

    async def quotas(self, *, broker_groups: Sequence[str] | None = None) -> dict[str, list[QuotaRow]]:
        """Return the quotas of accounts and topics by broker group, with the numbers of requests that its leader held
        and refused.
        """
        return await quotas(self._calls, await self._calls.group_names(broker_groups))

    async def put_quota(self, quota: Quota, *, broker_groups: Sequence[str] | None = None) -> None:
        """Set the quota of an account or a topic on some broker groups, on all by default. The name need not exist.

        Each group allows the full quota. A quota without any limit removes the present one.
        """
        await put_quota(self._calls, quota, await self._calls.group_names(broker_groups))

    # Messages.

    async def message_by_id(self, offset_message_id: str, *, keep_unreadable: bool = False) -> ReceivedMessage:
        """Return the message with an offset message id, which names the node that led when the message was stored.

        A message whose body cannot be read raises an error; with `keep_unreadable` it is returned with a `fault`.
        Raises `InvalidArgumentError` if the text is no such id, `NotFoundError` if there is no such message.
        """
        groups = await self.broker_groups()
        message = await message_by_id(self._calls, offset_message_id, groups, keep_unreadable=keep_unreadable)
        if message is None:
            raise _make_not_found_error(f"no message has the offset message id {offset_message_id}")
        return message

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        begin_ms: int = 0,
        end_ms: int = MAX_TIMESTAMP_MS,
        max_messages: int = 32,
        keep_unreadable: bool = False,
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic with a key, or with a unique key, stored between two times, oldest first.

        If there are more than `max_messages`, the newest of them are returned. Brokers return at most 64
        (`MAX_MESSAGES_BY_KEY`): a larger `max_messages` raises `InvalidArgumentError`. For more messages, ask again
        with an earlier `end_ms`. A message whose body cannot be read raises an error; with `keep_unreadable` it is
        returned with a `fault`.
        """
        if not 1 <= max_messages <= MAX_MESSAGES_BY_KEY:
            raise InvalidArgumentError(f"max_messages {max_messages} is not between 1 and {MAX_MESSAGES_BY_KEY}")
        route = await self._whole_route(topic)
        header = QueryMessageHeader(
            topic=topic, key=key, max_num=max_messages, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        return await messages_by_key(
            self._calls,
            {queue.broker_group for queue in route.readable},
            header,
            unique=unique,
            keep_unreadable=keep_unreadable,
        )

    async def delayed_messages(self, broker_group: str, *, after_ms: int = -1) -> DelayedRows:
        """Return the delayed messages of a broker group that are due next, at most 100, after a time in ms since 1970.

        A broker of a version that does not tell has none.
        """
        return await delayed_messages(self._calls, broker_group, after_ms)

    async def open_halves(self, broker_group: str) -> HalfRows:
        """Return the oldest open transactions of a broker group, at most 100, with their checks.

        A broker of a version that does not tell has none.
        """
        return await open_halves(self._calls, broker_group)

    async def message_trace(
        self, message_id: str, *, topic: str = TRACE_TOPIC, max_messages: int = MAX_MESSAGES_BY_KEY
    ) -> list[Trace]:
        """Return the traces of a message, by its `message_id`: its sends, then the rest, the earliest first.

        There may be none, because not all clients write traces. `topic` is the topic of the traces. Only the newest
        `max_messages` trace messages about the message are read. Unreadable parts are skipped. Raises the errors of
        `messages_by_key`.
        """
        trace_messages = await self.messages_by_key(topic, message_id, max_messages=max_messages, keep_unreadable=True)
        return traces_about(message_id, [message.body for message in trace_messages if message.fault is None])

    async def _queue_status(self, group: str, queue: MessageQueue) -> QueueStatus:
        offsets = self._queue_offsets()
        deadline = self._calls.deadline()
        first, end, committed = await asyncio.gather(
            offsets.first(queue, deadline), offsets.end(queue, deadline), offsets.committed(group, queue, deadline)
        )
        return QueueStatus(queue, first, end, committed)

    async def _locate_queue(self, queue: tuple[str, str, int]) -> MessageQueue:
        """Return the queue, once the addresses of its broker group are known."""
        target = MessageQueue(*queue)
        await self._calls.core.routes.get(target.topic, self._calls.deadline())
        return target

    def _queue_offsets(self) -> QueueOffsets:
        return QueueOffsets(self._calls.core)

    @property
    def _calls(self) -> ClusterCalls:
        return self._opening.calls


def _validate(check: Callable[[str], None], name: str) -> None:
    try:
        check(name)
    except InvalidParameter as error:
        raise InvalidArgumentError(error.remark) from error


def _make_not_found_error(text: str) -> RefusedError:
    return refusal(error_from_response(ResponseCode.QUERY_NOT_FOUND, text, {}))
