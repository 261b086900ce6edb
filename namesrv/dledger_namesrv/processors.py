"""Handlers of a name server's request codes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import msgspec

from dledger_base.audit_log import AuditLog
from dledger_base.request_turns import RequestTurns
from dledger_base.telling import Telling
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
from dledger_remoting.registration import (
    DataVersion,
    Steps,
    TopicChangesBody,
    registration_crc,
    registration_steps,
    run_steps,
)
from dledger_remoting.route import (
    BrokerMemberGroup,
    BrokerMemberGroupBody,
    encode_cluster_info,
    encode_route,
    wants_standard_json,
)
from dledger_remoting.topics import TOPIC_UNIT, TOPIC_UNIT_SUB

from .access import NameServerAccess
from .answers import fault_of_header, fault_of_topics, listed, refusal_of, shown, success
from .auditing import AUDITED, Audited
from .config import KEYS, ConfigError, NameServerConfig
from .kv import ORDER_TOPIC_NAMESPACE, KVFullError, KVStore, KVStoreError
from .metrics import UNREGISTERED, NameServerCounters
from .properties import asked_values, told_configuration
from .records import Registered
from .table import RouteTable
from .watch import MAX_WATCH_CHARS, MAX_WATCH_TOPICS, RouteWatches

log = logging.getLogger("dledger.namesrv")

Answer: TypeAlias = RemotingCommand | Coroutine[None, None, RemotingCommand]
_Processor: TypeAlias = Callable[[RemotingCommand], RemotingCommand]
_WaitingProcessor: TypeAlias = Callable[[RemotingCommand], Answer]

_BLOCKED_KEYS: Final = frozenset({"kvConfigPath", "configStorePath", "data"})

MAX_SMALL_BYTES: Final = 256 << 10
"""Maximum size in bytes of a registration that is handled at once, in the turn of the event loop in which it came.

A large registration delays it only if both are of the same group.
"""
ZLIB: Final = b"\x78"
"""The first byte of a zlib stream. A compressed registration counts as large, because it may become so."""
MAX_BODY_BYTES: Final = 64 << 10
"""Maximum size in bytes of a request's body, except in registrations (103) and changes of topics (20005)."""
MAX_CHANGED_VALUES: Final = 32_768
"""Maximum number of opening braces and commas in the JSON of a change of topics (20005), which bounds its values."""
MAX_WAITING_LISTS: Final = 256
"""Maximum number of lists of topics that wait for their turn or are being made."""
_CODES_WITH_LARGE_BODIES: Final = frozenset({RequestCode.REGISTER_BROKER, RequestCode.DLEDGER_TOPIC_CHANGES})


class Processors:
    """Handlers of all request codes of one name server, which use its route table, stored values and configuration."""

    def __init__(
        self,
        config: NameServerConfig,
        table: RouteTable,
        kv: KVStore,
        now_ms: Callable[[], int],
        counters: NameServerCounters | None = None,
        access: NameServerAccess | None = None,
        turns: Callable[[], RequestTurns] | None = None,
    ) -> None:
        self.config = config
        self._turns = turns or (lambda: RequestTurns(asyncio.get_running_loop()))
        self._access = access or NameServerAccess()
        self.audit_log = AuditLog()
        self._auditor = Audited(self.audit_log, signs=self._access.is_on)
        self.counters = counters or NameServerCounters()
        self.watches = RouteWatches(table)
        self._telling = Telling()
        self._registration_lock = asyncio.Lock()
        self._registration_bytes = 0
        """Total size in bytes of the large registrations that are being handled or wait for that."""
        self._registering_group: str | None = None
        """Name of the broker group whose large registration is being handled, None if there is none."""
        self._listing = asyncio.Lock()
        self._waiting_lists = 0
        self._registration_done = asyncio.Event()
        """Set when that registration is done."""
        self._table = table
        self._routes = table.routes
        self._kv = kv
        self._now_ms = now_ms
        self._kv_thread = ThreadPoolExecutor(1, "namesrv-kv")
        self._update_ordered_topics()
        self._immediate_processors: dict[int, _Processor] = {
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._get_cluster_info,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._list_system_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._get_kv_namespace,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._take_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._get_member_group,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.DLEDGER_FORGET_GROUP: self._forget_group,
            RequestCode.DLEDGER_TOPIC_CHANGES: self._change_topics,
        }
        self._waiting_processors: dict[int, _WaitingProcessor] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.DLEDGER_ROUTE_WATCH: self._watch_routes,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._list_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._list_topics_of_cluster,
            RequestCode.GET_UNIT_TOPIC_LIST: self._list_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._list_unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._list_unit_sub_only_topics,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
        }

    def handle(
        self,
        request: RemotingCommand,
        connection: int,
        address: str = "",
        on_proven: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Return the answer to a request that came over a connection, or a coroutine for it.

        `on_proven` is called if the request was signed rightly. Raises `RemotingError`.
        """
        self.counters.count_request(request.code)
        if len(request.body) > MAX_BODY_BYTES and request.code not in _CODES_WITH_LARGE_BODIES:
            raise InvalidParameter(f"the body has {len(request.body)} bytes, the limit is {MAX_BODY_BYTES}")
        if self._access.require(request, address):
            on_proven()
        if request.code in AUDITED:
            return self._auditor.handled(request, address, partial(self._dispatch, request, connection))
        return self._dispatch(request, connection)

    def _dispatch(self, request: RemotingCommand, connection: int) -> Answer:
        if request.code == RequestCode.REGISTER_BROKER:
            if len(request.body) > MAX_SMALL_BYTES or request.body[:1] == ZLIB:
                return self._register_in_turn(request, connection)
            if self._is_being_registered(request):
                return self._register_behind(request, connection)
            answer = run_steps(self._register_steps(request, connection))
        elif (direct := self._immediate_processors.get(request.code)) is not None:
            answer = direct(request)
        elif (waiting := self._waiting_processors.get(request.code)) is not None:
            return waiting(request)
        else:
            raise RequestCodeNotSupported(refusal_of(request.code))
        self.watches.notify()
        return answer

    async def close(self) -> None:
        """Close the audit log, wait for the value that is being stored, and refuse further values.

        Afterwards another server may use the data directory.
        """
        await asyncio.to_thread(self.audit_log.close)
        await asyncio.to_thread(self._kv_thread.shutdown, cancel_futures=True)

    # Brokers

    async def _register_in_turn(self, request: RemotingCommand, connection: int) -> RemotingCommand:
        """Handle one large registration at a time. Other requests are handled between its slices."""
        size = len(request.body)
        if self._registration_bytes + size > self.config.max_partial_bytes:
            raise SystemBusy(
                f"registrations of {self._registration_bytes} bytes wait here, max_partial_bytes is "
                f"{self.config.max_partial_bytes}: try again later"
            )
        self._registration_bytes += size
        try:
            async with self._registration_lock:
                self._registering_group = request.ext.get("brokerName")
                self._registration_done.clear()
                try:
                    return await self._turns().run(self._register_steps(request, connection))
                finally:
                    self._registering_group = None
                    self._registration_done.set()
        finally:
            self._registration_bytes -= size
            self.watches.notify()

    def _is_being_registered(self, request: RemotingCommand) -> bool:
        group = self._registering_group
        return group is not None and group == request.ext.get("brokerName")

    async def _register_behind(self, request: RemotingCommand, connection: int) -> RemotingCommand:
        """Handle a small registration once no large registration of the same group is being handled."""
        while self._is_being_registered(request):
            await self._registration_done.wait()
        answer = await self._turns().run(self._small_steps(request, connection))
        self.watches.notify()
        return answer

    def _small_steps(self, request: RemotingCommand, connection: int) -> Steps[RemotingCommand]:
        """Handle a small registration in one step, once no large one of its group is handled."""
        while self._is_being_registered(request):
            yield
        return run_steps(self._register_steps(request, connection))

    def _register_steps(self, request: RemotingCommand, connection: int) -> Steps[RemotingCommand]:
        header = decode_ext(RegisterBrokerHeader, request.ext)
        if header.body_crc32 not in (0, registration_crc(request.body)):
            raise ServerError(f"crc32 not match: header {header.body_crc32}, body {registration_crc(request.body)}")
        body = yield from registration_steps(request.body, compressed=header.compressed)
        known = self._table.members(header.broker_name).get(header.broker_id)
        too_long = fault_of_header(header) or fault_of_topics(body.topic_config_serialize_wrapper.topic_config_table)
        result = (
            Registered(too_long)
            if too_long
            else (yield from self._table.register_steps(header, body, now_ms=self._now_ms(), connection=connection))
        )
        if result.refusal:
            self.counters.registrations_refused += 1
            if result.limit:
                self.counters.limits[result.limit] += 1
            line = "event=registration_refused group=%s id=%d address=%s reason=%r"
            name, address = shown(header.broker_name), shown(header.broker_addr)
            self._telling.log(
                *(log, logging.WARNING, address.rpartition(":")[0], f"{name} {address} {result.limit}", line),
                *(name, header.broker_id, address, result.refusal),
            )
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
        return success(request, encode_body(KVTable(order)) if order else b"", ext)

    def _change_topics(self, request: RemotingCommand) -> RemotingCommand:
        node = decode_ext(BrokerNodeHeader, request.ext)
        if request.body.count(b"{") + request.body.count(b",") > MAX_CHANGED_VALUES:
            remark = f"so many changes are not taken at once: {node.broker_addr} is to register as a whole"
            return make_response(request, ResponseCode.BROKER_NOT_EXIST, remark)
        changes = decode_body(TopicChangesBody, request.body)
        if too_long := fault_of_topics(changes.topic_config_table):
            raise ServerError(f"changes refused: {too_long}")
        if self._table.change_topics(node, changes, now_ms=self._now_ms()):
            self.counters.registrations += 1
            return success(request)
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
        return success(request)

    def _query_data_version(self, request: RemotingCommand) -> RemotingCommand:
        node = decode_ext(BrokerNodeHeader, request.ext)
        known = self._table.data_version(node.cluster_name, node.broker_addr)
        changed = known is None or known != decode_body(DataVersion, request.body)
        if not changed:
            self._table.refresh(node.cluster_name, node.broker_addr, self._now_ms())
        ext = encode_ext(QueryDataVersionResponseHeader(changed))
        return success(request, b"" if known is None else encode_body(known), ext)

    def _take_heartbeat(self, request: RemotingCommand) -> RemotingCommand:
        node = decode_ext(BrokerHeartbeatHeader, request.ext)
        if self._table.refresh(node.cluster_name, node.broker_addr, self._now_ms()):
            return success(request)
        remark = f"{node.broker_addr} of group {node.broker_name} is not registered: register it first"
        return make_response(request, ResponseCode.BROKER_NOT_EXIST, remark)

    def _get_member_group(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(BrokerMemberGroupHeader, request.ext)
        members = self._table.members(header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, members)
        standard = request.version >= STANDARD_JSON_VERSION
        return success(request, encode_fastjson(BrokerMemberGroupBody(group), standard=standard))

    def _wipe_write_permission(self, request: RemotingCommand) -> Answer:
        return self._run_in_slices(self._write_permission_steps(request, writable=False))

    def _add_write_permission(self, request: RemotingCommand) -> Answer:
        return self._run_in_slices(self._write_permission_steps(request, writable=True))

    def _write_permission_steps(self, request: RemotingCommand, *, writable: bool) -> Steps[RemotingCommand]:
        name = decode_ext(BrokerNameHeader, request.ext).broker_name
        count = yield from self._table.write_permission_steps(name, writable=writable)
        if writable:
            log.info("event=write_permission_added group=%s topics=%d", name, count)
        else:
            log.info("event=write_permission_wiped group=%s topics=%d", name, count)
        self.watches.notify()
        return success(request, ext={"addTopicCount" if writable else "wipeTopicCount": str(count)})

    def _run_in_slices(self, steps: Steps[RemotingCommand]) -> Answer:
        """Run all steps at once if there are few topics. Otherwise let other requests run between the steps."""
        return run_steps(steps) if self._table.is_small else self._turns().run(steps)

    def _forget_group(self, request: RemotingCommand) -> RemotingCommand:
        name = decode_ext(BrokerNameHeader, request.ext).broker_name
        if self._table.give_to_rival(name):
            log.info("event=group_name_given group=%s", name)
            return success(request)
        if self._table.members(name):
            raise InvalidParameter(f"broker group {name} has registered nodes: stop them first")
        if not self._table.forget_group(name):
            raise QueryNotFound(f"there is no absent broker group {name}")
        log.info("event=group_forgotten group=%s", name)
        return success(request)

    # Routes

    def _get_route(self, request: RemotingCommand) -> RemotingCommand:
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
        return success(request, body)

    async def _watch_routes(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(RouteWatchHeader, request.ext)
        topics = list({topic: None for topic in header.topics.split(",") if topic})
        if len(topics) > MAX_WATCH_TOPICS or len(header.topics) > MAX_WATCH_CHARS:
            raise RequestCodeNotSupported(  # the client then polls the route
                f"a route watch of {len(topics)} topics, {len(header.topics)} characters, cannot wait here: at most "
                f"{MAX_WATCH_TOPICS} topics and {MAX_WATCH_CHARS} characters can"
            )
        request.ext, request.body = {}, b""  # the request is held until it is answered, without these
        size = self.watches.size_of(topics)
        timeout_ms = min(max(header.timeout_millis, 0), self.config.max_watch_ms)
        if self.watches.held_bytes + size > self.config.max_watch_bytes:
            self.counters.limits["max_watch_bytes"] += 1
            raise SystemBusy(
                f"route watches of {self.watches.held_bytes} bytes wait here, max_watch_bytes is "
                f"{self.config.max_watch_bytes}: ask for the route from time to time, or try again later"
            )
        version = await self.watches.wait(topics, header.version, timeout_ms / 1000)
        return success(request, ext={"version": str(version)})

    def _get_cluster_info(self, request: RemotingCommand) -> RemotingCommand:
        standard = request.version >= STANDARD_JSON_VERSION
        info = self._table.cluster_info(include_absent=_includes_absent(request))
        return success(request, encode_cluster_info(info, standard))

    def _delete_topic(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(TopicInClusterHeader, request.ext)
        if self._table.delete_topic(header.topic, header.cluster_name or None):
            log.info("event=topic_deleted topic=%s cluster=%s", header.topic, header.cluster_name)
        return success(request)

    # Topic lists

    def _list_all_topics(self, request: RemotingCommand) -> Answer:
        return self._answer_topic_list(request, self._routes.topics(include_absent=_includes_absent(request)))

    def _list_topics_of_cluster(self, request: RemotingCommand) -> Answer:
        cluster = decode_ext(ClusterHeader, request.ext).cluster
        return self._answer_topic_list(request, self._routes.topics_of_cluster(cluster))

    def _list_unit_topics(self, request: RemotingCommand) -> Answer:
        return self._answer_topic_list(request, self._routes.topics_by_flags(required=TOPIC_UNIT))

    def _list_unit_sub_topics(self, request: RemotingCommand) -> Answer:
        return self._answer_topic_list(request, self._routes.topics_by_flags(required=TOPIC_UNIT_SUB))

    def _list_unit_sub_only_topics(self, request: RemotingCommand) -> Answer:
        topics = self._routes.topics_by_flags(required=TOPIC_UNIT_SUB, excluded=TOPIC_UNIT)
        return self._answer_topic_list(request, topics)

    def _answer_topic_list(self, request: RemotingCommand, topics: Steps[list[str]]) -> Answer:
        if not self.config.enable_topic_list:
            raise ServerError("topic lists are disabled: enable_topic_list = false")
        steps = listed(request, topics)
        if self._table.is_small:
            return run_steps(steps)
        request.ext, request.body = {}, b""  # the request is held until it is answered, without these
        return self._list_in_turn(steps)

    async def _list_in_turn(self, steps: Steps[RemotingCommand]) -> RemotingCommand:
        """Make one list at a time, because each holds the names of all topics until it is answered."""
        if self._waiting_lists >= MAX_WAITING_LISTS:
            raise SystemBusy(f"{MAX_WAITING_LISTS} lists of topics are being made or wait for it: try again later")
        self._waiting_lists += 1
        try:
            async with self._listing:
                return await self._turns().run(steps)
        finally:
            self._waiting_lists -= 1

    def _list_system_topics(self, request: RemotingCommand) -> RemotingCommand:
        info = self._table.cluster_info()
        names = sorted({*info.cluster_addr_table, *info.broker_addr_table})
        addresses = [address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()]
        return success(request, encode_body(TopicList(names, addresses[0] if addresses else None)))

    # Stored values

    async def _put_kv(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(PutKVHeader, request.ext)
        await self._store(lambda: self._kv.put(header.namespace, header.key, header.value))
        return success(request)

    async def _delete_kv(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(KVKeyHeader, request.ext)
        await self._store(lambda: self._kv.delete(header.namespace, header.key))
        return success(request)

    async def _store(self, change: Callable[[], None]) -> None:
        """Run a change of a stored value on a thread, because it waits for the disk. One thread runs all changes in
        order.

        The client may disconnect meanwhile. That ends this coroutine but not the change. So the thread, not this
        coroutine, makes the changed value take effect.
        """
        loop = asyncio.get_running_loop()

        def store() -> None:
            change()
            loop.call_soon_threadsafe(self._update_ordered_topics)

        try:
            await loop.run_in_executor(self._kv_thread, store)
        except KVStoreError as error:
            if isinstance(error, KVFullError):
                self.counters.limits["max_stored_bytes"] += 1
            raise ServerError(str(error)) from error

    def _update_ordered_topics(self) -> None:
        """Pass the stored list of ordered topics to the table, and wake the watches of routes that change by this."""
        self._table.set_ordered(self._kv.namespace(ORDER_TOPIC_NAMESPACE))
        self.watches.notify()

    def _get_kv(self, request: RemotingCommand) -> RemotingCommand:
        header = decode_ext(KVKeyHeader, request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return success(request, ext={"value": value})

    def _get_kv_namespace(self, request: RemotingCommand) -> RemotingCommand:
        namespace = decode_ext(KVNamespaceHeader, request.ext).namespace
        table = self._kv.namespace(namespace)
        if not table:
            raise QueryNotFound(f"No config item, Namespace: {namespace}")
        return success(request, encode_body(KVTable(table)))

    # Configuration

    def _get_config(self, request: RemotingCommand) -> RemotingCommand:
        return success(request, told_configuration(self.config))

    def _update_config(self, request: RemotingCommand) -> RemotingCommand:
        values = asked_values(request.body)
        for key in values:
            if key in _BLOCKED_KEYS:
                raise NoPermission(f"the key {key} cannot be changed over the wire")
            if KEYS.called(key) not in KEYS.live:
                raise InvalidParameter(f"the key {key} cannot be changed, only {', '.join(sorted(KEYS.live))} can")
        try:
            self.config = replace(self.config, **KEYS.read(values).values)
        except ConfigError as error:
            raise InvalidParameter(str(error)) from error
        self._table.delete_missing_topics = self.config.delete_topic_with_broker_registration
        log.info("event=configuration_changed %s", " ".join(f"{key}={value!r}" for key, value in values.items()))
        return success(request)


def _includes_absent(request: RemotingCommand) -> bool:
    return decode_ext(IncludeAbsentHeader, request.ext).include_absent
