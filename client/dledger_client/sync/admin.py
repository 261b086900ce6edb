"""Administrator for programs without an event loop: the calls of `Admin`, blocking.

`make fix` writes this module from `admin.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger_remoting.audit import AuditLine
from dledger_remoting.headers_range import DEFAULT_LEASE_MS
from dledger_remoting.leaders import LeaderChangeRow
from dledger_remoting.quotas import Quota, QuotaRow
from dledger_remoting.range_reads import PinRow
from dledger_remoting.route import BrokerData, ClusterInfo
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import (
    DEFAULT_TOPIC_QUEUES,
    PERM_READ_WRITE,
    TRACE_TOPIC,
    SubscriptionGroupConfig,
    TopicConfig,
)
from dledger_remoting.traces import Trace
from dledger_remoting.waiting import DelayedRows, HalfRows

from ..admin import DEFAULT_TIMEOUT_SECONDS, Admin
from ..administration.groups import GroupMember, QueueReader, QueueStatus, RunningConsumer
from ..administration.lookups import MAX_MESSAGES_BY_KEY, MAX_TIMESTAMP_MS
from ..administration.node_calls import ConnectedProducer
from ..administration.topic_statistics import TopicStatistics
from ..blocking import Blocking, ClosedAfterUse
from ..cluster.routes import TopicRoute
from ..consuming.offsets import StartFrom
from ..messages import MessageQueue, ReceivedMessage
from ..tls import Tls


class SyncAdmin(ClosedAfterUse):
    """A blocking `Admin`."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Open the blocking client with the arguments of `Admin`."""
        self._client = Admin(name_servers, timeout=timeout, credentials=credentials, tls=tls)
        self._blocking = Blocking("dledger admin", self._client.start(), self._client.close)

    def close(self) -> None:
        """Close all connections, as `Admin.close` does."""
        self._blocking.finish(self._client.close())

    def cluster_info(self) -> ClusterInfo:
        """Return all broker groups with the addresses of their nodes (id 0 is the leader), and their names by
        cluster, as `Admin.cluster_info` does.
        """
        return self._blocking.run(self._client.cluster_info())

    def broker_groups(self) -> dict[str, BrokerData]:
        """Return the broker groups by name, as `Admin.broker_groups` does."""
        return self._blocking.run(self._client.broker_groups())

    def forget_group(self, name: str) -> None:
        """Tell all name servers that an absent broker group is permanently gone, with all its messages, as
        `Admin.forget_group` does.
        """
        self._blocking.run(self._client.forget_group(name))

    def create_topic(
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
        """Create a topic with `queues` queues on each broker group (all by default), or change its configuration, as
        `Admin.create_topic` does.
        """
        self._blocking.run(
            self._client.create_topic(
                topic,
                queues=queues,
                perm=perm,
                broker_groups=broker_groups,
                attributes=attributes,
                order=order,
                filter_type=filter_type,
                sys_flag=sys_flag,
            )
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on all broker groups, and its route on all name servers, as
        `Admin.delete_topic` does.
        """
        self._blocking.run(self._client.delete_topic(topic))

    def topics(self, *, include_system: bool = False) -> list[str]:
        """Return the sorted names of all topics, as `Admin.topics` does."""
        return self._blocking.run(self._client.topics(include_system=include_system))

    def topic_route(self, topic: str) -> TopicRoute:
        """Return the readable and writable queues of a topic as they are now, as `Admin.topic_route` does."""
        return self._blocking.run(self._client.topic_route(topic))

    def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's configuration by broker group, as `Admin.topic_config` does."""
        return self._blocking.run(self._client.topic_config(topic))

    def topic_statistics(self, topic: str) -> TopicStatistics:
        """Return what the queues of a topic keep, and how many messages come, as `Admin.topic_statistics` does."""
        return self._blocking.run(self._client.topic_statistics(topic))

    def topic_consumers(self, topic: str) -> list[str]:
        """Return the sorted groups that consume a topic: their members subscribe to it, or they have offsets on it,
        as `Admin.topic_consumers` does.
        """
        return self._blocking.run(self._client.topic_consumers(topic))

    def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups by name, as `Admin.groups` does."""
        return self._blocking.run(self._client.groups())

    def create_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a consumer group on all broker groups, or change its configuration, as `Admin.create_group` does."""
        self._blocking.run(self._client.create_group(config))

    def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a consumer group on all broker groups, with its committed offsets if `clean_offsets`, as
        `Admin.delete_group` does.
        """
        self._blocking.run(self._client.delete_group(group, clean_offsets=clean_offsets))

    def members(self, group: str) -> list[GroupMember]:
        """Return the present members of a consumer group by client id, as `Admin.members` does."""
        return self._blocking.run(self._client.members(group))

    def readers(self, group: str) -> dict[MessageQueue, QueueReader]:
        """Return the client that last asked for messages of each queue, within 2 minutes, as seen by the nodes that
        answer, as `Admin.readers` does.
        """
        return self._blocking.run(self._client.readers(group))

    def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningConsumer:
        """Return what a member of a consumer group says of itself (307), with the stacks of its threads and tasks,
        as `Admin.running` does.
        """
        return self._blocking.run(self._client.running(group, client_id, stacks=stacks))

    def producers(self) -> list[ConnectedProducer]:
        """Return the clients of all producer groups that nodes have heard of, by group and client id, as
        `Admin.producers` does.
        """
        return self._blocking.run(self._client.producers())

    def progress(self, group: str, topic: str | None = None) -> list[QueueStatus]:
        """Return a group's progress in the queues of a topic, or of all topics to which its members subscribe, as
        `Admin.progress` does.
        """
        return self._blocking.run(self._client.progress(group, topic))

    def delays(self, group: str, topic: str) -> dict[MessageQueue, float]:
        """Return how long ago, in seconds, the next message of a group was stored, in each queue of a topic, as
        `Admin.delays` does.
        """
        return self._blocking.run(self._client.delays(group, topic))

    def offsets(self, group: str, topic: str) -> list[QueueStatus]:
        """Return first, end and committed offset of every readable queue of a topic, sorted by queue, as
        `Admin.offsets` does.
        """
        return self._blocking.run(self._client.offsets(group, topic))

    def set_offset(self, group: str, queue: tuple[str, str, int], offset: int) -> None:
        """Move a group to an offset of a queue, as `Admin.set_offset` does."""
        self._blocking.run(self._client.set_offset(group, queue, offset))

    def reset_offsets(
        self, group: str, topic: str, to: StartFrom, *, queue_id: int | None = None
    ) -> dict[MessageQueue, int]:
        """Move a group to `"first"`, to `"last"`, or to the first messages stored at or after a time in ms since
        1970, as `Admin.reset_offsets` does.
        """
        return self._blocking.run(self._client.reset_offsets(group, topic, to, queue_id=queue_id))

    def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Give one group the offsets of another, in one topic or in all topics in which the other has committed, as
        `Admin.clone_offsets` does.
        """
        self._blocking.run(self._client.clone_offsets(source, target, topic=topic))

    def first_offset(self, queue: tuple[str, str, int]) -> int:
        """Return the offset of a queue's first kept message, as `Admin.first_offset` does."""
        return self._blocking.run(self._client.first_offset(queue))

    def end_offset(self, queue: tuple[str, str, int]) -> int:
        """Return the offset that a queue's next message will get, as `Admin.end_offset` does."""
        return self._blocking.run(self._client.end_offset(queue))

    def pins(self) -> dict[str, list[PinRow]]:
        """Return the pins that keep parts of the log, by broker group, as `Admin.pins` does."""
        return self._blocking.run(self._client.pins())

    def pin(
        self, name: str, position: int, *, broker_group: str, lease_seconds: float = DEFAULT_LEASE_MS / 1000
    ) -> int:
        """Keep a broker group's log from a position on, or renew such a pin, as `Admin.pin` does."""
        return self._blocking.run(
            self._client.pin(name, position, broker_group=broker_group, lease_seconds=lease_seconds)
        )

    def unpin(self, name: str, *, broker_groups: Sequence[str] | None = None) -> None:
        """Remove a pin on some broker groups, on all by default, as `Admin.unpin` does."""
        self._blocking.run(self._client.unpin(name, broker_groups=broker_groups))

    def settings(self, *, broker_groups: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """Return the settings that are set for whole broker groups, as texts by key, by broker group, as
        `Admin.settings` does.
        """
        return self._blocking.run(self._client.settings(broker_groups=broker_groups))

    def put_settings(self, values: Mapping[str, str], *, broker_groups: Sequence[str] | None = None) -> None:
        """Set keys of the configuration on all nodes of some broker groups, of all by default, while they run, as
        `Admin.put_settings` does.
        """
        self._blocking.run(self._client.put_settings(values, broker_groups=broker_groups))

    def leader_changes(self, broker_group: str) -> dict[str, list[LeaderChangeRow]]:
        """Return the leaders that each node of a broker group has seen since its start, with reasons, by node id, as
        `Admin.leader_changes` does.
        """
        return self._blocking.run(self._client.leader_changes(broker_group))

    def hand_over(self, broker_group: str, node_id: str) -> None:
        """Have the leader of a broker group hand over to a voter, as `Admin.hand_over` does."""
        self._blocking.run(self._client.hand_over(broker_group, node_id))

    def audit_lines(self, broker_group: str, *, word: str = "") -> dict[str, list[AuditLine]]:
        """Return the newest lines of the audit log of each node of a broker group, the newest first, by node id, as
        `Admin.audit_lines` does.
        """
        return self._blocking.run(self._client.audit_lines(broker_group, word=word))

    def configurations(self, broker_group: str) -> dict[str, Mapping[str, str]]:
        """Return the configuration in effect on each node of a broker group, as texts by name, by address, as
        `Admin.configurations` does.
        """
        return self._blocking.run(self._client.configurations(broker_group))

    def quotas(self, *, broker_groups: Sequence[str] | None = None) -> dict[str, list[QuotaRow]]:
        """Return the quotas of accounts and topics by broker group, with the numbers of requests that its leader
        held and refused, as `Admin.quotas` does.
        """
        return self._blocking.run(self._client.quotas(broker_groups=broker_groups))

    def put_quota(self, quota: Quota, *, broker_groups: Sequence[str] | None = None) -> None:
        """Set the quota of an account or a topic on some broker groups, on all by default, as `Admin.put_quota`
        does.
        """
        self._blocking.run(self._client.put_quota(quota, broker_groups=broker_groups))

    def message_by_id(self, offset_message_id: str, *, keep_unreadable: bool = False) -> ReceivedMessage:
        """Return the message with an offset message id, which names the node that led when the message was stored,
        as `Admin.message_by_id` does.
        """
        return self._blocking.run(self._client.message_by_id(offset_message_id, keep_unreadable=keep_unreadable))

    def messages_by_key(
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
        """Return the messages of a topic with a key, or with a unique key, stored between two times, oldest first,
        as `Admin.messages_by_key` does.
        """
        return self._blocking.run(
            self._client.messages_by_key(
                topic,
                key,
                unique=unique,
                begin_ms=begin_ms,
                end_ms=end_ms,
                max_messages=max_messages,
                keep_unreadable=keep_unreadable,
            )
        )

    def delayed_messages(self, broker_group: str, *, after_ms: int = -1) -> DelayedRows:
        """Return the delayed messages of a broker group that are due next, at most 100, after a time in ms since
        1970, as `Admin.delayed_messages` does.
        """
        return self._blocking.run(self._client.delayed_messages(broker_group, after_ms=after_ms))

    def open_halves(self, broker_group: str) -> HalfRows:
        """Return the oldest open transactions of a broker group, at most 100, with their checks, as
        `Admin.open_halves` does.
        """
        return self._blocking.run(self._client.open_halves(broker_group))

    def message_trace(
        self, message_id: str, *, topic: str = TRACE_TOPIC, max_messages: int = MAX_MESSAGES_BY_KEY
    ) -> list[Trace]:
        """Return the traces of a message, by its `message_id`: its sends, then the rest, the earliest first, as
        `Admin.message_trace` does.
        """
        return self._blocking.run(self._client.message_trace(message_id, topic=topic, max_messages=max_messages))
