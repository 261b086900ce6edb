"""Administration for programs without an event loop: the calls of `Admin`, blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger_remoting.headers_range import DEFAULT_LEASE_MS
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

from .admin import Admin
from .blocking import Blocking, ClosedAfterUse
from .groups import GroupMember, QueueReader, QueueStatus
from .lookups import MAX_MESSAGES_BY_KEY, MAX_TIMESTAMP_MS
from .messages import MessageQueue, ReceivedMessage
from .offsets import StartFrom
from .routes import TopicRoute
from .tls import Tls


class SyncAdmin(ClosedAfterUse):
    """A blocking `Admin`."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        timeout: float = 10.0,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._admin = Admin(name_servers, timeout=timeout, credentials=credentials, tls=tls)
        self._blocking = Blocking("dledger admin", self._admin.start())

    def close(self) -> None:
        """See `Admin.close`."""
        self._blocking.finish(self._admin.close())

    def cluster_info(self) -> ClusterInfo:
        """See `Admin.cluster_info`."""
        return self._blocking.run(self._admin.cluster_info())

    def broker_groups(self) -> dict[str, BrokerData]:
        """See `Admin.broker_groups`."""
        return self._blocking.run(self._admin.broker_groups())

    def forget_group(self, name: str) -> None:
        """See `Admin.forget_group`."""
        self._blocking.run(self._admin.forget_group(name))

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
        """See `Admin.create_topic`."""
        self._blocking.run(
            self._admin.create_topic(
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
        """See `Admin.delete_topic`."""
        self._blocking.run(self._admin.delete_topic(topic))

    def topics(self, *, include_system: bool = False) -> list[str]:
        """See `Admin.topics`."""
        return self._blocking.run(self._admin.topics(include_system=include_system))

    def topic_route(self, topic: str) -> TopicRoute:
        """See `Admin.topic_route`."""
        return self._blocking.run(self._admin.topic_route(topic))

    def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """See `Admin.topic_config`."""
        return self._blocking.run(self._admin.topic_config(topic))

    def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """See `Admin.groups`."""
        return self._blocking.run(self._admin.groups())

    def create_group(self, config: SubscriptionGroupConfig) -> None:
        """See `Admin.create_group`."""
        self._blocking.run(self._admin.create_group(config))

    def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """See `Admin.delete_group`."""
        self._blocking.run(self._admin.delete_group(group, clean_offsets=clean_offsets))

    def members(self, group: str) -> list[GroupMember]:
        """See `Admin.members`."""
        return self._blocking.run(self._admin.members(group))

    def readers(self, group: str) -> dict[MessageQueue, QueueReader]:
        """See `Admin.readers`."""
        return self._blocking.run(self._admin.readers(group))

    def progress(self, group: str, topic: str | None = None) -> list[QueueStatus]:
        """See `Admin.progress`."""
        return self._blocking.run(self._admin.progress(group, topic))

    def offsets(self, group: str, topic: str) -> list[QueueStatus]:
        """See `Admin.offsets`."""
        return self._blocking.run(self._admin.offsets(group, topic))

    def set_offset(self, group: str, queue: tuple[str, str, int], offset: int) -> None:
        """See `Admin.set_offset`."""
        self._blocking.run(self._admin.set_offset(group, queue, offset))

    def reset_offsets(
        self, group: str, topic: str, to: StartFrom, *, queue_id: int | None = None
    ) -> dict[MessageQueue, int]:
        """See `Admin.reset_offsets`."""
        return self._blocking.run(self._admin.reset_offsets(group, topic, to, queue_id=queue_id))

    def settings(self, *, broker_groups: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """See `Admin.settings`."""
        return self._blocking.run(self._admin.settings(broker_groups=broker_groups))

    def put_settings(self, values: Mapping[str, str], *, broker_groups: Sequence[str] | None = None) -> None:
        """See `Admin.put_settings`."""
        self._blocking.run(self._admin.put_settings(values, broker_groups=broker_groups))

    def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """See `Admin.clone_offsets`."""
        self._blocking.run(self._admin.clone_offsets(source, target, topic=topic))

    def first_offset(self, queue: tuple[str, str, int]) -> int:
        """See `Admin.first_offset`."""
        return self._blocking.run(self._admin.first_offset(queue))

    def end_offset(self, queue: tuple[str, str, int]) -> int:
        """See `Admin.end_offset`."""
        return self._blocking.run(self._admin.end_offset(queue))

    def pins(self) -> dict[str, list[PinRow]]:
        """See `Admin.pins`."""
        return self._blocking.run(self._admin.pins())

    def pin(
        self, name: str, position: int, *, broker_group: str, lease_seconds: float = DEFAULT_LEASE_MS / 1000
    ) -> int:
        """See `Admin.pin`."""
        return self._blocking.run(
            self._admin.pin(name, position, broker_group=broker_group, lease_seconds=lease_seconds)
        )

    def unpin(self, name: str, *, broker_groups: Sequence[str] | None = None) -> None:
        """See `Admin.unpin`."""
        self._blocking.run(self._admin.unpin(name, broker_groups=broker_groups))

    def quotas(self, *, broker_groups: Sequence[str] | None = None) -> dict[str, list[QuotaRow]]:
        """See `Admin.quotas`."""
        return self._blocking.run(self._admin.quotas(broker_groups=broker_groups))

    def put_quota(self, quota: Quota, *, broker_groups: Sequence[str] | None = None) -> None:
        """See `Admin.put_quota`."""
        self._blocking.run(self._admin.put_quota(quota, broker_groups=broker_groups))

    def message_by_id(self, offset_message_id: str) -> ReceivedMessage:
        """See `Admin.message_by_id`."""
        return self._blocking.run(self._admin.message_by_id(offset_message_id))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        begin_ms: int = 0,
        end_ms: int = MAX_TIMESTAMP_MS,
        max_messages: int = 32,
    ) -> list[ReceivedMessage]:
        """See `Admin.messages_by_key`."""
        return self._blocking.run(
            self._admin.messages_by_key(
                topic, key, unique=unique, begin_ms=begin_ms, end_ms=end_ms, max_messages=max_messages
            )
        )

    def message_trace(
        self, message_id: str, *, topic: str = TRACE_TOPIC, max_messages: int = MAX_MESSAGES_BY_KEY
    ) -> list[Trace]:
        """See `Admin.message_trace`."""
        return self._blocking.run(self._admin.message_trace(message_id, topic=topic, max_messages=max_messages))
