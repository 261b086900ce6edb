"""Node of a broker group: joins the log's node, the state machine, the client port and the registrations."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from socket import AF_INET
from typing import TYPE_CHECKING, Final

from dledger.config import NodeConfig
from dledger.engines.named import engine_named
from dledger.environment import AsyncioEnvironment
from dledger.errors import LogError
from dledger.net.settings import PeerTls
from dledger.node import Node
from dledger.replica.status import NodeStatus
from dledger.store.disk import OsDisk
from dledger_base.audit_log import AuditLog
from dledger_base.certificates import Renewal, Watched, ends_at
from dledger_base.extras import install_command
from dledger_base.loop_holds import LoopHolds
from dledger_base.names import first_address
from dledger_base.secret import MIN_SECRET_BYTES, GroupSecrets
from dledger_base.tls import TlsContext
from dledger_broker.clients.channels import Channels
from dledger_broker.config import BrokerConfig, read_files
from dledger_broker.errors import StartError
from dledger_broker.features import FEATURES
from dledger_broker.features.access.job import withheld_kinds
from dledger_broker.features.accounts.requests import AccountRequests
from dledger_broker.features.retention.policy import REASONS
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import Listener, require_bindable
from dledger_broker.frontend.registration import Registrar
from dledger_broker.frontend.route_lookups import RouteLookups
from dledger_broker.kernel.counters import HELP, BrokerCounters
from dledger_broker.kernel.events import Events
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import DERIVED, BrokerMachine, MachineConfig
from dledger_broker.kernel.parts import Feature, Gauge, LabelledGauge
from dledger_broker.kernel.state import BrokerState
from dledger_broker.service import BrokerService
from dledger_broker.tls_fact import TlsFact, require_tls
from dledger_remoting.accounts import NODE, node_secret
from dledger_remoting.hosts import HostAddress
from dledger_remoting.signatures import Credentials

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

_logger = logging.getLogger(__name__)

TRANSFER_ATTEMPTS: Final = 3
_PROVEN_BY_TLS: Final = b"known to everybody: certificates prove who is a node"


class Broker:
    """One node of a broker group.

        broker = Broker(config)
        await broker.start()
        ...
        await broker.drain()
        await broker.stop()

    `bootstrap` founds a group of this voter alone in an empty directory, once all peers have answered that they are in
    no group. With `alone` the node founds the group at once. If a peer is in a group, the node joins that group
    instead.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        features: Sequence[Feature] = FEATURES,
        bootstrap: bool = False,
        alone: bool = False,
    ) -> None:
        self.config = config
        self._features = features
        self.counter = BrokerCounters()
        self._events = Events()
        self.group = LeadershipView(config.node_id, str(config.advertised), self._events)
        self.group_secret: GroupSecrets | None = None
        """The secrets that the group's nodes share, after `start` has read them. None if `secret_file` is not set."""
        self.tls: TlsContext | None = None
        """TLS context of the ports for clients, None if these are plain."""
        self.http_tls: TlsContext | None = None
        self.metrics_token: str | None = None
        """Token that clients of the HTTP port's metrics need, None if metrics are public."""
        self._namesrv_tls: TlsContext | None = None
        self._peer_tls: PeerTls | None = None
        self._credentials: Credentials | None = None
        self._renewal = Renewal((), self._count_restart)
        self._restarts = 0
        self._bootstrap = bootstrap
        self._alone = alone
        self._stop_reason: asyncio.Future[BaseException] | None = None
        """Result: the reason why this node must stop although its log could continue."""
        self._drain_cut = asyncio.Event()
        self._drain_ends_at = 0.0
        self._connections: set[ClientConnection] = set()
        self._env: AsyncioEnvironment | None = None
        self.holds = LoopHolds()
        """Counter of the times for which parts of this node held its event loop."""
        self._http: AppRunner | None = None
        self._started = False
        self.node: Node
        self.machine: BrokerMachine
        self.listener: Listener
        self.registrar: Registrar
        self.route_lookups: RouteLookups
        self.service: BrokerService

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Resolve this node's own names, then open the ports and take part in the group. A failure leaves nothing
        running.

        Raises `StartError` and `ConfigError` of this package, and what `dledger.node.Node.start` raises.
        """
        config = self.config
        tls_kept = require_tls(config)
        self._read_files()
        for key, host in (("host", config.host), ("peer_host", config.peer_host)):
            await first_address(key, host)
        advertised = await first_address("advertised_host", config.advertised_host, AF_INET)
        store_host = HostAddress(advertised, config.advertised_port)
        self._env = env = AsyncioEnvironment(asyncio.get_running_loop(), self.holds)
        # The log and its views share one disk. When no more files can be opened, opening a file
        # closes a spare file of either.
        disk = OsDisk(str(config.data_dir))
        try:
            self.machine = BrokerMachine(
                str(config.data_dir),
                env=env,
                disk=disk,
                features=self._features,
                config=MachineConfig(node_id=config.node_id, withheld_kinds=withheld_kinds(config)),
                events=self._events,
            )
            engine = engine_named(config.engine)
            self.node = Node(self._node_config(), self.machine, engine=engine, holds=self.holds, disk=disk)
            self.machine.attach(self.node)
            self._stop_reason = asyncio.get_running_loop().create_future()
            self._events.add(TlsFact(config, self.machine, env, disk, tls_kept, self._stop_reason.set_result))
            self._assemble(env, store_host)
            await self.listener.bind(config.host, config.port)
            if config.alias_port:
                await self.listener.bind(config.host, config.alias_port, config.alias_number)
            require_bindable("peer_port", config.peer_host, config.peer_port)
            if config.http_port:
                require_bindable("http_port", config.host, config.http_port)
            await self.node.start()
            self._started = True
            self.audit_log.open(config.data_dir / "log", config.audit_days)
            self.service.start()
            if config.http_port:
                await self._start_http()
            await self.listener.serve()
            self.registrar.start()
            self._renewal.start()
        except BaseException:
            await self.stop()
            raise
        for warning in config.warnings():
            _logger.warning("node=%s event=warning text=%r", config.node_id, warning)

    async def drain(self) -> None:
        """Leave the group without clients noticing.

        The node hands the leadership over, leaves the route, answers long polls, and keeps forwarding for `drain_ms`.
        By default that is longer than clients take to fetch the route again. The drain is skipped if no other node can
        be reached. `cut_drain` ends it early, without any loss.
        """
        self.group.is_leaving = True
        if not self.service.gossip.reachable_peers():
            _logger.info("node=%s event=drain_skipped reason=no_reachable_peer", self.config.node_id)
            return
        _logger.info("node=%s event=draining drain_ms=%d", self.config.node_id, self.config.drain_ms)
        self._drain_ends_at = time.monotonic() + self.config.drain_ms / 1000
        leaving = asyncio.ensure_future(self._leave())
        cut = asyncio.ensure_future(self._drain_cut.wait())
        try:
            await asyncio.wait((leaving, cut), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                leaving.result()
            await asyncio.wait((cut,), timeout=self.config.drain_ms / 1000)
        finally:
            leaving.cancel()
            cut.cancel()
            await asyncio.gather(leaving, cut, return_exceptions=True)

    async def _leave(self) -> None:
        """Make clients find the other nodes instead of this one."""
        await self._hand_over()
        await self.registrar.leave()
        self.service.release()

    def cut_drain(self) -> None:
        """End a drain at once."""
        self._drain_cut.set()

    async def stop(self) -> None:
        """Stop at once, after requests that are under way have been answered. May be called twice."""
        started, self._started = self._started, False
        if started:
            await self.registrar.stop()
            await self.route_lookups.stop()
            await self.service.settle(self.listener.stop_reading)
        self._renewal.stop()
        if hasattr(self, "listener"):
            await self.listener.close()
        if self._http is not None:
            await self._http.cleanup()
            self._http = None
        if started:
            if self.node.replica.failure is None:
                await self.machine.close()
            else:
                self.machine.abandon()
            await self.service.part()
            await self.node.stop()
        if started:
            await asyncio.to_thread(self.audit_log.close)
        if self._env is not None:
            self._env.close()
            self._env = None

    @property
    def stop_waits_for(self) -> str:
        """The work that `drain` or `stop` is still busy with."""
        if (left_s := self._drain_ends_at - time.monotonic()) > 0 and not self._drain_cut.is_set():
            return f"clients are led to the other nodes, for {left_s:.0f} s more"
        return self.machine.queues.backlog or "requests, connections and files are being closed"

    async def wait_failed(self) -> BaseException:
        """Wait until this node cannot continue, and return the reason. The caller must then stop the node."""
        assert self._stop_reason is not None
        failed = asyncio.ensure_future(self.node.wait_failed())
        try:
            await asyncio.wait((failed, self._stop_reason), return_when=asyncio.FIRST_COMPLETED)
            return failed.result() if failed.done() else self._stop_reason.result()
        finally:
            failed.cancel()

    # ---------------------------------------------------------------- status and metrics

    def status(self) -> NodeStatus:
        """Return the status of the replicated log."""
        return self.node.status()

    @property
    def is_draining(self) -> bool:
        """True if this node is leaving its group's route."""
        return self.group.is_leaving

    @property
    def access_obstacle(self) -> str | None:
        """The reason why access control of this node cannot judge requests and refuses all of them. None if it can
        judge.
        """
        return self.service.access.obstacle

    @property
    def audit_log(self) -> AuditLog:
        """The audit log of this node."""
        return self.service.requests.audit.log

    @property
    def is_introduced(self) -> bool:
        """True if clients find this leader: each name server that answers has taken its registration of this term."""
        return self.registrar.introduced

    @property
    def state(self) -> BrokerState:
        """Topics, groups, queues, offsets."""
        return self.machine.state

    def counters(self) -> Mapping[str, int]:
        """Return the counters of this node's clients.

        The prefix `peer_` marks the links to other nodes of the group, and `tls_` the handshakes of the client ports.
        """
        links = asdict(self.node.link_counters())
        restarts = self.registrar.restarts + self.machine.keys.restarts + self._restarts
        return (
            self.counter.as_dict()
            | {f"peer_{name}": count for name, count in links.items()}
            | {f"tls_{name}": count for name, count in asdict(self.listener.door_counters).items()}
            | {"task_restarts": restarts}
        )

    def trimmed(self) -> Mapping[str, tuple[int, int]]:
        """Return the messages and bytes that retention deleted while this node led, by reason."""
        counter = self.counter
        return {reason: (counter.trimmed_messages[reason], counter.trimmed_bytes[reason]) for reason in REASONS}

    def job_failures(self) -> Mapping[str, int]:
        """Return the number of exceptions that ended a run, by the name of the leader job."""
        return self.machine.jobs.failures

    def gauges(self) -> Iterable[Gauge]:
        """Yield the gauges: numbers of this moment."""
        yield from (Gauge(name, HELP[name], read) for name, read in self._own_gauges().items())
        if self.tls is not None:
            name = "tls_certificate_ends_seconds"
            yield Gauge(name, HELP[name], partial(ends_at, self.tls))
        for part in self.service.parts:
            yield from part.gauges

    def labelled_gauges(self) -> Iterable[LabelledGauge]:
        """Yield the gauges that have several values, each under a label."""
        for part in self.service.parts:
            yield from part.labelled_gauges

    def _own_gauges(self) -> Mapping[str, Callable[[], float]]:
        return {
            "connections": lambda: len(self._connections),
            "clients": lambda: len(self.service.gossip.local),
            "requests_in_flight": lambda: sum(connection.in_flight for connection in self._connections),
            "partial_bytes": lambda: self.listener.bounds.partial_bytes,
            "forwards_waiting": lambda: self.service.forwarder.waiting,
            "name_servers_registered": lambda: self.registrar.registered,
            "audit_lines_lost": lambda: self.audit_log.lost,
            "key_index_lag_bytes": lambda: self.machine.keys.lag_bytes,
        }

    # ---------------------------------------------------------------- inside

    def _node_config(self) -> NodeConfig:
        config = self.config
        return NodeConfig(
            cluster=config.cluster,
            group=config.broker_group,
            node_id=config.node_id,
            data_dir=config.data_dir,
            secret=self._secret(),
            bind=(config.peer_host, config.peer_port),
            peers={node_id: (address.host, address.port) for node_id, address in config.peers.items()},
            flush="async" if config.flush == "async" else "sync",
            segment_bytes=config.segment_bytes,
            heartbeat_ms=config.heartbeat_ms,
            election_min_ms=config.election_min_ms,
            election_max_ms=config.election_max_ms,
            max_uncommitted_bytes=config.max_uncommitted_bytes,
            snapshot_interval_ms=config.snapshot_interval_s * 1000,
            reserve_bytes=config.reserve_bytes,
            tls=self._peer_tls,
            bootstrap=self._bootstrap,
            bootstrap_alone=self._alone,
            derived=DERIVED,
        )

    def _read_files(self) -> None:
        files = read_files(self.config)
        self.group_secret = files.group_secret
        self.tls, self.http_tls, self.metrics_token = files.tls, files.http_tls, files.metrics_token
        self._namesrv_tls, self._peer_tls = files.namesrv_tls, files.peer_tls
        watched: list[Watched] = [*files.contexts]
        if files.group_secret is not None:
            watched.append(files.group_secret)
        if files.access_keys is not None:
            self._credentials = Credentials(NODE, node_secret(files.access_keys.keys[0]))
            loop = asyncio.get_running_loop()

            def on_keys_changed(keys: Sequence[bytes]) -> None:
                loop.call_soon_threadsafe(partial(self._use_keys, keys))

            files.access_keys.on_change = on_keys_changed
            watched.append(files.access_keys)
        self._renewal = Renewal(watched, self._count_restart)

    def _use_keys(self, keys: Sequence[bytes]) -> None:
        """Judge, seal and sign with the new keys after the key file has changed."""
        self.registrar.credentials = Credentials(NODE, node_secret(keys[0]))
        key_file = self.service.parts[AccountRequests].changes.keys
        if key_file is not None:
            key_file.replace(keys)

    def _secret(self) -> bytes | GroupSecrets:
        """Return the secret that nodes prove themselves with: the group's secret if it has one.

        Without it, the secret is a public constant if certificates prove who is a node. Otherwise it is random, so that
        nobody else knows it.
        """
        if self.group_secret is not None:
            return self.group_secret
        return _PROVEN_BY_TLS if self._peer_tls is not None else secrets.token_bytes(MIN_SECRET_BYTES)

    def _count_restart(self) -> None:
        self._restarts += 1

    def _assemble(self, env: AsyncioEnvironment, store_host: HostAddress) -> None:
        """Make the parts and join them. Nothing runs yet."""
        config, machine, group = self.config, self.machine, self.group
        channels = Channels(self._connections)
        self.service = service = BrokerService(
            config, self._features, machine, self.node, env, group, self.counter, store_host, channels
        )
        self.listener = Listener(
            config.node_id,
            service.live,
            self.counter,
            self._connections,
            service.requests.on_reads,
            service.channel_lost,
            self.tls,
            self.holds,
            service.requests.flow,
            service.access,
        )
        self.registrar = Registrar(machine, group, config, self._credentials, self._namesrv_tls)
        self._events.add(self.registrar, service.announcements)
        self.route_lookups = RouteLookups(env, config.namesrv, self._namesrv_tls)
        service.topic_routes.attach(self.route_lookups.find)
        service.announcements.attach(self.registrar)

    async def _start_http(self) -> None:
        try:
            from dledger_broker.frontend.http import start_http
        except ImportError as error:
            raise StartError(
                f"http_port = {self.config.http_port} needs {error.name}: {install_command('broker')}; "
                "or set http_port = 0"
            ) from error
        self._http = await start_http(self)

    async def _hand_over(self) -> None:
        """Have another node lead. If no node can take over, this node just leaves, and the group elects a leader."""
        for _ in range(TRANSFER_ATTEMPTS):
            if not self.group.ready:
                return
            try:
                if await self.node.transfer_leadership():
                    return
            except LogError as error:
                _logger.info("node=%s event=transfer_failed error=%r", self.config.node_id, str(error))
                return
