"""Handlers of a name server's request codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from dledger_remoting.bodies import KVTable, TopicList, decode_body, encode_body
from dledger_remoting.codes import STANDARD_JSON_VERSION, RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.errors import (
    InvalidParameter,
    NoPermission,
    QueryNotFound,
    RequestCodeNotSupported,
    ServerError,
    SystemBusy,
    TopicNotExist,
)
from dledger_remoting.fastjson import encode_fastjson
from dledger_remoting.headers import (
    BrokerHeartbeatHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    BrokerNodeHeader,
    ClusterHeader,
    IncludeAbsentHeader,
    KVKeyHeader,
    KVNamespaceHeader,
    PutKVHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    RouteHeader,
    RouteWatchHeader,
    TopicInClusterHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.registration import DataVersion, TopicChangesBody, decode_registration, registration_crc
from dledger_remoting.route import (
    BrokerMemberGroup,
    BrokerMemberGroupBody,
    encode_cluster_info,
    encode_route,
    wants_standard_json,
)
from dledger_remoting.topics import TOPIC_UNIT, TOPIC_UNIT_SUB

from .access import NameServerAccess
from .config import KEYS, ConfigError, NameServerConfig
from .kv import ORDER_TOPIC_NAMESPACE, KVFullError, KVStore, KVStoreError
from .metrics import UNREGISTERED, NameServerCounters
from .names import fault_of_header, fault_of_topics, shown
from .properties import asked_values, told_configuration
from .records import Registered
from .refused_codes import refusal_of
from .table import RouteTable
from .watch import RouteWatches

log = logging.getLogger("dledger.namesrv")

Answer: TypeAlias = RemotingCommand | Coroutine[None, None, RemotingCommand]
_Processor: TypeAlias = Callable[[RemotingCommand], RemotingCommand]
_WaitingProcessor: TypeAlias = Callable[[RemotingCommand], Coroutine[None, None, RemotingCommand]]

_BLOCKED: Final = frozenset({"kvConfigPath", "configStorePath", "data"})

MAX_WATCH_CHARS: Final = 256 << 10
"""Room for two thousand topics; what a watch says stays in memory for as long as it waits."""


class Processors:
    """The request processors of one name server, over its table, its stored values and its configuration."""

    def __init__(
        self,
        config: NameServerConfig,
        table: RouteTable,
        kv: KVStore,
        now_ms: Callable[[], int],
        counters: NameServerCounters | None = None,
        access: NameServerAccess | None = None,
    ) -> None:
        self.config = config
        self._access = access or NameServerAccess()
        self.counters = counters or NameServerCounters()
        self.watches = RouteWatches(table)
        self._table = table
        self._kv = kv
        self._now_ms = now_ms
        self._kv_thread = ThreadPoolExecutor(1, "namesrv-kv")
        self._note_ordered()
        self._direct: dict[int, _Processor] = {
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_sub_only_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_namespace,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.DLEDGER_FORGET_GROUP: self._forget_group,
            RequestCode.DLEDGER_TOPIC_CHANGES: self._change_topics,
        }
        self._waiting: dict[int, _WaitingProcessor] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.DLEDGER_ROUTE_WATCH: self._watch_routes,
        }

    def handle(self, request: RemotingCommand, connection: int, address: str = "") -> Answer:
        """The answer to a request that came over a connection, or a coroutine for it. Raises `RemotingError`."""
        self.counters.count_request(request.code)
        self._access.require(request, address)
        if request.code == RequestCode.REGISTER_BROKER:
            answer = self._register_broker(request, connection)
        elif (direct := self._direct.get(request.code)) is not None:
            answer = direct(request)
        elif (waiting := self._waiting.get(request.code)) is not None:
            return waiting(request)
        else:
            raise RequestCodeNotSupported(refusal_of(request.code))
        self.watches.notify()
        return answer

    async def close(self) -> None:
        """Wait for the value that is being stored: nobody else may have the directory before. Store no more."""
        await asyncio.to_thread(self._kv_thread.shutdown, cancel_futures=True)

    # Brokers

    def _register_broker(self, request: RemotingCommand, connection: int) -> RemotingCommand:
        header = decode_ext(RegisterBrokerHeader, request.ext)
        if header.body_crc32 not in (0, registration_crc(request.body)):
            raise ServerError(f"crc32 not match: header {header.body_crc32}, body {registration_crc(request.body)}")
        body = decode_registration(request.body, compressed=header.compressed)
        known = self._table.members(header.broker_name).get(header.broker_id)
        too_long = fault_of_header(header) or fault_of_topics(body.topic_config_serialize_wrapper.topic_config_table)
        result = (
            Registered(too_long)
            if too_long
            else self._table.register(header, body, now_ms=self._now_ms(), connection=connection)
        )
        if result.refusal:
            self.counters.registrations_refused += 1
            if result.limit:
                self.counters.limits[result.limit] += 1
            log.warning(
                "event=registration_refused group=%s id=%d address=%s reason=%r",
                shown(header.broker_name), header.broker_id, shown(header.broker_addr), result.refusal,
            )  # fmt: skip
            raise ServerError(f"registration refused: {result.refusal}")
        self.counters.registrations += 1
        if known != header.broker_addr:
            log.info(
                "event=registered group=%s id=%d address=%s term=%d topics=%d",
                header.broker_name, header.broker_id, header.broker_addr,
                body.topic_config_serialize_wrapper.data_version.state_version,
                len(body.topic_config_serialize_wrapper.topic_config_table),
            )  # fmt: skip
        ext = encode_ext(
            RegisterBrokerResponseHeader(result.ha_address, result.master_address, accepts_topic_changes=True)
        )
        order = self._kv.namespace(ORDER_TOPIC_NAMESPACE) if self.config.return_order_topic_config_to_broker else {}
        return _success(request, encode_body(KVTable(order)) if order else b"", ext)

    def _change_topics(self, request: RemotingCommand) -> RemotingCommand:
        node = decode_ext(BrokerNodeHeader, request.ext)
        changes = decode_body(TopicChangesBody, request.body)
        if too_long := fault_of_topics(changes.topic_config_table):
            raise ServerError(f"changes refused: {too_long}")
        if self._table.change_topics(node, changes, now_ms=self._now_ms()):
            self.counters.registrations += 1
            return _success(request)
        remark = f"{node.broker_addr} of group {node.broker_name} did not register what the changes begin with"
        return make_response(request, ResponseCode.BROKER_NOT_EXIST, remark)

    def _unregister_broker(self, request: RemotingCommand) -> RemotingCommand:
        node = decode_ext(BrokerNodeHeader, request.ext)
        removed = self._table.unregister(
            node.broker_name, node.cluster_name, node.broker_addr, node.broker_id, node.state_version
        )
        if removed:
            self.counters.removals[UNREGISTERED] += 1
            log.info("event=unregistered group=%s id=%d address=%s", node.broker_name, node.broker_id, node.broker_addr)
        return _success(request)

    def _query_data_version(self, request: RemotingCommand) -> RemotingCommand:
        node = decode_ext(BrokerNodeHeader, request.ext)
        known = self._table.data_version(node.cluster_name, node.broker_addr)
        changed = known is None or known != decode_body(DataVersion, request.body)
        if not changed:
            self._table.refresh(node.cluster_name, node.broker_addr, self._now_ms())
        ext = encode_ext(QueryDataVersionResponseHeader(changed))
        return _success(request, b"" if known is None else encode_body(known), ext)

    def _broker_heartbeat(self, request: RemotingCommand) -> RemotingCommand:
        node = decode_ext(BrokerHeartbeatHeader, request.ext)
        if self._table.refresh(node.cluster_name, node.broker_addr, self._now_ms()):
            return _success(request)
        remark = f"{node.broker_addr} of group {node.broker_name} is not registered: register it first"
        return make_response(request, ResponseCode.BROKER_NOT_EXIST, remark)

    def _member_group(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(BrokerMemberGroupHeader, request.ext)
        members = self._table.members(header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, members)
        standard = request.version >= STANDARD_JSON_VERSION
        return _success(request, encode_fastjson(BrokerMemberGroupBody(group), standard=standard))

    def _wipe_write_permission(self, request: RemotingCommand) -> RemotingCommand:
        broker_name = decode_ext(BrokerNameHeader, request.ext).broker_name
        count = self._table.set_write_permission(broker_name, writable=False)
        log.info("event=write_permission_wiped group=%s topics=%d", broker_name, count)
        return _success(request, ext={"wipeTopicCount": str(count)})

    def _add_write_permission(self, request: RemotingCommand) -> RemotingCommand:
        broker_name = decode_ext(BrokerNameHeader, request.ext).broker_name
        count = self._table.set_write_permission(broker_name, writable=True)
        log.info("event=write_permission_added group=%s topics=%d", broker_name, count)
        return _success(request, ext={"addTopicCount": str(count)})

    def _forget_group(self, request: RemotingCommand) -> RemotingCommand:
        name = decode_ext(BrokerNameHeader, request.ext).broker_name
        if self._table.members(name):
            raise InvalidParameter(f"broker group {name} has registered nodes: stop them first")
        if not self._table.forget_group(name):
            raise QueryNotFound(f"there is no absent broker group {name}")
        log.info("event=group_forgotten group=%s", name)
        return _success(request)

    # Routes

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(RouteHeader, request.ext)
        standard = wants_standard_json(request.version, header.accept_standard_json_only)
        include_absent = _includes_absent(request)
        body = self._table.encoded_route(header.topic, standard=standard, include_absent=include_absent)
        if body is None:
            raise TopicNotExist(f"No topic route info in name server for the topic: {header.topic}")
        if self.config.order_message_enable:
            order = self._kv.get(ORDER_TOPIC_NAMESPACE, header.topic)
            route = self._table.route(header.topic, include_absent=include_absent)
            if order is not None and route is not None:
                body = encode_route(msgspec.structs.replace(route, order_topic_conf=order), standard)
        return _success(request, body)

    async def _watch_routes(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(RouteWatchHeader, request.ext)
        size = len(request.body) + sum(len(name) + len(value) for name, value in request.ext.items())
        if size > MAX_WATCH_CHARS:
            raise InvalidParameter(
                f"a route watch of {size} characters cannot wait here, at most {MAX_WATCH_CHARS} can"
            )
        topics = tuple(topic for topic in header.topics.split(",") if topic)
        timeout_ms = min(max(header.timeout_millis, 0), self.config.max_watch_ms)
        if self.watches.held_bytes + size > self.config.max_watch_bytes:
            self.counters.limits["max_watch_bytes"] += 1
            raise SystemBusy(
                f"route watches of {self.watches.held_bytes} bytes wait here, max_watch_bytes is "
                f"{self.config.max_watch_bytes}: ask for the route from time to time, or try again later"
            )
        version = await self.watches.wait(topics, header.version, timeout_ms / 1000, size)
        return _success(request, ext={"version": str(version)})

    def _cluster_info(self, request: RemotingCommand) -> RemotingCommand:
        standard = request.version >= STANDARD_JSON_VERSION
        info = self._table.cluster_info(include_absent=_includes_absent(request))
        return _success(request, encode_cluster_info(info, standard))

    def _delete_topic(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(TopicInClusterHeader, request.ext)
        if self._table.delete_topic(header.topic, header.cluster_name or None):
            log.info("event=topic_deleted topic=%s cluster=%s", header.topic, header.cluster_name)
        return _success(request)

    # Topic lists

    def _all_topics(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(request, self._table.topics(include_absent=_includes_absent(request)))

    def _topics_of_cluster(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(request, self._table.topics_of_cluster(decode_ext(ClusterHeader, request.ext).cluster))

    def _unit_topics(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(request, self._table.topics_by_flags(required=TOPIC_UNIT))

    def _unit_sub_topics(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(request, self._table.topics_by_flags(required=TOPIC_UNIT_SUB))

    def _unit_sub_only_topics(self, request: RemotingCommand) -> RemotingCommand:
        topics = self._table.topics_by_flags(required=TOPIC_UNIT_SUB, excluded=TOPIC_UNIT)
        return self._topic_list(request, topics)

    def _topic_list(self, request: RemotingCommand, topics: list[str]) -> RemotingCommand:
        if not self.config.enable_topic_list:
            raise ServerError("topic lists are disabled: enable_topic_list = false")
        return _success(request, encode_body(TopicList(topics)))

    def _system_topics(self, request: RemotingCommand) -> RemotingCommand:
        info = self._table.cluster_info()
        names = sorted({*info.cluster_addr_table, *info.broker_addr_table})
        addresses = [address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()]
        return _success(request, encode_body(TopicList(names, addresses[0] if addresses else None)))

    # Stored values

    async def _put_kv(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(PutKVHeader, request.ext)
        await self._store(lambda: self._kv.put(header.namespace, header.key, header.value))
        return _success(request)

    async def _delete_kv(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(KVKeyHeader, request.ext)
        await self._store(lambda: self._kv.delete(header.namespace, header.key))
        return _success(request)

    async def _store(self, change: Callable[[], None]) -> None:
        """Run a change on a thread, because it waits for the disk; all on one, for nobody may wait for one's end.

        Who asked for it may leave meanwhile, which ends this wait and not the thread: what that has stored takes its
        effect from there.
        """
        loop = asyncio.get_running_loop()

        def store() -> None:
            change()
            loop.call_soon_threadsafe(self._note_ordered)

        try:
            await loop.run_in_executor(self._kv_thread, store)
        except KVStoreError as error:
            if isinstance(error, KVFullError):
                self.counters.limits["max_stored_bytes"] += 1
            raise ServerError(str(error)) from error

    def _note_ordered(self) -> None:
        """Routes of topics that have become ordered, or are so no longer, are other ones now."""
        self._table.set_ordered(self._kv.namespace(ORDER_TOPIC_NAMESPACE))
        self.watches.notify()

    def _get_kv(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(KVKeyHeader, request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return _success(request, ext={"value": value})

    def _kv_namespace(self, request: RemotingCommand) -> RemotingCommand:
        namespace = decode_ext(KVNamespaceHeader, request.ext).namespace
        table = self._kv.namespace(namespace)
        if not table:
            raise QueryNotFound(f"No config item, Namespace: {namespace}")
        return _success(request, encode_body(KVTable(table)))

    # Configuration

    def _get_config(self, request: RemotingCommand) -> RemotingCommand:
        return _success(request, told_configuration(self.config))

    def _update_config(self, request: RemotingCommand) -> RemotingCommand:
        values = asked_values(request.body)
        for key in values:
            if key in _BLOCKED:
                raise NoPermission(f"the key {key} cannot be changed over the wire")
            if KEYS.called(key) not in KEYS.live:
                raise InvalidParameter(f"the key {key} cannot be changed, only {', '.join(sorted(KEYS.live))} can")
        try:
            self.config = replace(self.config, **KEYS.read(values).values)
        except ConfigError as error:
            raise InvalidParameter(str(error)) from error
        self._table.delete_missing_topics = self.config.delete_topic_with_broker_registration
        log.info("event=configuration_changed %s", " ".join(f"{key}={value!r}" for key, value in values.items()))
        return _success(request)


def _includes_absent(request: RemotingCommand) -> bool:
    return decode_ext(IncludeAbsentHeader, request.ext).include_absent


def _success(request: RemotingCommand, body: bytes = b"", ext: dict[str, str] | None = None) -> RemotingCommand:
    return make_response(request, ResponseCode.SUCCESS, ext=ext, body=body)
