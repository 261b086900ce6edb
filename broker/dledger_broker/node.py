"""Node of a broker group, put together: the log's node, the state machine, the client port, name servers."""

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
from dledger.extras import install_command
from dledger.loop_holds import LoopHolds
from dledger.net.names import first_address
from dledger.net.secret import MIN_SECRET_BYTES
from dledger.net.settings import PeerTls
from dledger.net.tls import TlsContext
from dledger.node import Node
from dledger.replica.status import NodeStatus
from dledger_broker.clients.channels import Channels
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import StartError
from dledger_broker.features import FEATURES
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import Listener, require_bindable
from dledger_broker.frontend.registration import Registrar
from dledger_broker.frontend.route_lookups import RouteLookups
from dledger_broker.kernel.counters import HELP, BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine, MachineConfig
from dledger_broker.kernel.parts import Feature, Gauge, LabelledGauge
from dledger_broker.kernel.state import BrokerState
from dledger_broker.service import BrokerService
from dledger_broker.start_files import read_files
from dledger_remoting.hosts import HostAddress
from dledger_remoting.root_account import NODE, node_secret
from dledger_remoting.signatures import Credentials
from dledger_serving.certificates import Renewal, ends_at

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

    `bootstrap` founds a group of this one voter in a directory that has no identity yet.
    """

    def __init__(
        self, config: BrokerConfig, *, features: Sequence[Feature] = FEATURES, bootstrap: bool = False
    ) -> None:
        self.config = config
        self._features = features
        self.counter = BrokerCounters()
        self.group = Group(config.node_id, str(config.advertised))
        self.group_secret: bytes | None = None
        """What the group's nodes share, once it was read; None if `secret_file` is not set."""
        self.tls: TlsContext | None = None
        """What the ports for clients speak TLS with, None if they do not."""
        self.http_tls: TlsContext | None = None
        """The same of the HTTP port."""
        self._namesrv_tls: TlsContext | None = None
        self._peer_tls: PeerTls | None = None
        self._credentials: Credentials | None = None
        self._renewal = Renewal((), self._count_restart)
        self._restarts = 0
        self._bootstrap = bootstrap
        self._drain_cut = asyncio.Event()
        self._drain_ends_at = 0.0
        self._connections: set[ClientConnection] = set()
        self._env: AsyncioEnvironment | None = None
        self.holds = LoopHolds()
        """What held the event loop of this node."""
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
        """Open the ports and take part in the group, once this node's own names are known. What fails leaves nothing
        running.

        Raises `StartError` and `ConfigError` of this package, and what `dledger.node.Node.start` raises.
        """
        config = self.config
        self._read_files()
        for key, host in (("host", config.host), ("peer_host", config.peer_host)):
            await first_address(key, host)
        advertised = await first_address("advertised_host", config.advertised_host, AF_INET)
        store_host = HostAddress(advertised, config.advertised_port)
        self._env = env = AsyncioEnvironment(asyncio.get_running_loop(), self.holds)
        try:
            self.machine = BrokerMachine(
                str(config.data_dir),
                env=env,
                features=self._features,
                config=MachineConfig(node_id=config.node_id),
            )
            self.node = Node(self._node_config(), self.machine, engine=engine_named(config.engine), holds=self.holds)
            self.machine.attach(self.node)
            self._assemble(env, store_host)
            await self.listener.bind(config.host, config.port)
            if config.alias_port:
                await self.listener.bind(config.host, config.alias_port, config.alias_number)
            require_bindable("peer_port", config.peer_host, config.peer_port)
            if config.http_port:
                require_bindable("http_port", config.host, config.http_port)
            await self.node.start()
            self._started = True
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
        """Leave so that clients notice nothing: hand the leadership over, leave the route, answer long polls, and go on
        forwarding for `drain_ms`, longer than clients take to look the route up again.

        Skipped when no other node can be reached; `cut_drain` ends it early, which loses nothing.
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
        """Let clients find the other nodes instead of this one."""
        await self._hand_over()
        await self.registrar.leave()
        self.service.release()

    def cut_drain(self) -> None:
        """End a drain at once."""
        self._drain_cut.set()

    async def stop(self) -> None:
        """Stop at once. Requests that are under way are answered first; may be called twice."""
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
        if self._env is not None:
            self._env.close()
            self._env = None

    @property
    def stop_waits_for(self) -> str:
        """What `drain`, or `stop`, is still busy with."""
        if (left_s := self._drain_ends_at - time.monotonic()) > 0 and not self._drain_cut.is_set():
            return f"clients are led to the other nodes, for {left_s:.0f} s more"
        return self.machine.queues.backlog or "requests, connections and files are being closed"

    async def wait_failed(self) -> BaseException:
        """Wait until this node cannot go on; returns why. It must be stopped then."""
        return await self.node.wait_failed()

    # ---------------------------------------------------------------- what it shows

    def status(self) -> NodeStatus:
        """Where the replicated log stands."""
        return self.node.status()

    @property
    def is_draining(self) -> bool:
        """Whether this node is leaving its group's route."""
        return self.group.is_leaving

    @property
    def access_obstacle(self) -> str | None:
        """See `Access.obstacle`."""
        return self.service.access.obstacle

    @property
    def is_introduced(self) -> bool:
        """See `Registrar.introduced`."""
        return self.registrar.introduced

    @property
    def state(self) -> BrokerState:
        """Topics, groups, queues, offsets."""
        return self.machine.state

    def counters(self) -> Mapping[str, int]:
        """Numbers that only grow: this node's clients, and (`peer_`) its links to the group's other nodes."""
        links = asdict(self.node.link_counters())
        restarts = self.registrar.restarts + self.machine.keys.restarts + self._restarts
        return (
            self.counter.as_dict()
            | {f"peer_{name}": count for name, count in links.items()}
            | {f"tls_{name}": count for name, count in asdict(self.listener.door_counters).items()}
            | {"task_restarts": restarts}
        )

    def job_failures(self) -> Mapping[str, int]:
        """See `LeaderJobs.failures`."""
        return self.machine.jobs.failures

    def gauges(self) -> Iterable[Gauge]:
        """Numbers of this moment."""
        yield from (Gauge(name, HELP[name], read) for name, read in self._own_gauges().items())
        if self.tls is not None:
            name = "tls_certificate_ends_seconds"
            yield Gauge(name, HELP[name], partial(ends_at, self.tls))
        for part in self.service.parts:
            yield from part.gauges

    def labelled_gauges(self) -> Iterable[LabelledGauge]:
        """Those that are shown for several by their names."""
        for part in self.service.parts:
            yield from part.labelled_gauges

    def _own_gauges(self) -> Mapping[str, Callable[[], float]]:
        return {
            "connections": lambda: len(self._connections),
            "clients": lambda: len(self.service.gossip.local),
            "requests_in_flight": lambda: sum(connection.in_flight for connection in self._connections),
            "partial_bytes": lambda: self.listener.request_memory.held_bytes,
            "forwards_waiting": lambda: self.service.forwarder.waiting,
            "name_servers_registered": lambda: self.registrar.registered,
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
        )

    def _read_files(self) -> None:
        files = read_files(self.config)
        self.group_secret = files.group_secret
        self.tls, self.http_tls = files.tls, files.http_tls
        self._namesrv_tls, self._peer_tls = files.namesrv_tls, files.peer_tls
        if files.access_keys:
            self._credentials = Credentials(NODE, node_secret(files.access_keys[0]))
        self._renewal = Renewal(files.contexts, self._count_restart)

    def _secret(self) -> bytes:
        """The group's; of a node that was given none, one that nobody else knows, or, where certificates tell who is
        a node, one that everybody does.
        """
        if self.group_secret is not None:
            return self.group_secret
        return _PROVEN_BY_TLS if self._peer_tls is not None else secrets.token_bytes(MIN_SECRET_BYTES)

    def _count_restart(self) -> None:
        self._restarts += 1

    def _assemble(self, env: AsyncioEnvironment, store_host: HostAddress) -> None:
        """Make the parts and join them; nothing runs yet."""
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
        )
        self.registrar = Registrar(machine, group, config, self._credentials, self._namesrv_tls)
        self.route_lookups = RouteLookups(env, config.namesrv, self._namesrv_tls)
        service.topic_routes.attach(self.route_lookups.find)
        service.announcements.attach(self.registrar)
        self.registrar.on_told = service.announcements.check
        group.listeners.append(service.announcements.check)

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
        """Have another node lead; without one that can, this node just leaves and the others elect."""
        for _ in range(TRANSFER_ATTEMPTS):
            if not self.group.ready:
                return
            try:
                if await self.node.transfer_leadership():
                    return
            except LogError as error:
                _logger.info("node=%s event=transfer_failed error=%r", self.config.node_id, str(error))
                return
