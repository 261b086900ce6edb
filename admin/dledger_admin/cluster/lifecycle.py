"""Starting and stopping whole local clusters.

`ClusterSetup.prepare` looks at everything that could be wrong before anything is written or started, so that bad input
changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dledger.engines.named import engine_named
from dledger.errors import ConfigError
from dledger.types import NATIVE_ENGINE

from ..errors import AdminError, LayoutError, StartError
from .bootstrap import LOCK_FILE, check_data_dir, complete_bootstrap, founding_manifest
from .config_files import (
    DEFAULT_SEGMENT_BYTES,
    Overrides,
    broker_table,
    namesrv_table,
    proxy_table,
    read_overrides,
    stored_overrides,
    write_config_files,
)
from .files import being_written, make_directory
from .layout import DEFAULT_BASE_PORT, DEFAULT_GROUPS, DEFAULT_NAMESRV_PORT, DEFAULT_NODES, ClusterLayout
from .manifest import Manifest, read_manifest, write_manifest
from .ports import is_free, require_free
from .probes import NodeStatus, fetch_all, fetch_obstacle, groups_clients_find
from .processes import NAMESRV, PROXY, Service, broker_service, namesrv_service, proxy_service, stop_at_once
from .securing import Asked, make_secure, require_files, with_security
from .set_keys import set_keys
from .starting import START_TIMEOUT_S, Patience
from .validation import check_broker_config, check_namesrv_config, check_proxy_config

_POLL_S = 0.03


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Options of `up`. None leaves the choice to the cluster's manifest, or to the defaults."""

    data_dir: Path
    groups: int | None = None
    nodes: int | None = None
    namesrv_port: int | None = None
    base_port: int | None = None
    config: Path | None = None
    engine: str | None = None
    asked: Asked = field(default_factory=Asked)
    proxy_port: int | None = None
    proxy_http_port: int | None = None
    settings: Sequence[str] = ()
    """Keys with values, as `--set` takes them."""


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """A cluster that may be started: all checks passed, nothing written yet."""

    layout: ClusterLayout
    manifest: Manifest
    overrides: Overrides
    asked: Asked
    meanings: list[str]
    """New meanings of keys that the configuration sets and that an earlier version read differently."""

    @classmethod
    def prepare(cls, options: UpOptions) -> ClusterSetup:
        """Check everything that `up` needs; raises `AdminError` with one line on what is wrong."""
        check_data_dir(options.data_dir)
        existing = read_manifest(options.data_dir)
        layout = _choose_layout(options, existing)
        require_stopped(layout)
        require_free(layout.ports())
        overrides = read_overrides(options.config, layout) if options.config else stored_overrides(layout)
        overrides = set_keys(overrides, options.settings, layout)
        manifest = _set_security(layout, _choose_manifest(layout, existing, overrides, options.engine), options.asked)
        require_engine(manifest.engine)
        meanings: dict[str, None] = {}
        for place in layout.places():
            changed_meanings = check_broker_config(broker_table(layout, manifest, place, overrides), place.node_id)
            meanings.update(dict.fromkeys(changed_meanings))
        check_namesrv_config(namesrv_table(layout, manifest, overrides))
        if layout.proxy is not None:
            check_proxy_config(proxy_table(layout, manifest, layout.proxy, overrides))
        return cls(layout, manifest, overrides, options.asked, list(meanings))

    def start(self) -> RunningCluster:
        """Complete the bootstrap, write the configuration, start every process; the caller holds `up_lock`."""
        existing = read_manifest(self.layout.data_dir)
        was_secured = existing is not None and existing.secured
        manifest = complete_bootstrap(self.layout, msgspec.structs.replace(self.manifest, secured=was_secured))
        if self.manifest.secured:  # client settings follow, as they name the ports
            make_secure(self.layout, renew_certificates=self.asked.renew_certificates)
            manifest = msgspec.structs.replace(manifest, secured=True)
        if read_manifest(self.layout.data_dir) != manifest:
            write_manifest(self.layout.data_dir, manifest)
        write_config_files(self.layout, manifest, self.overrides)
        cluster = RunningCluster(self.layout)
        try:
            cluster.spawn()
        except BaseException:
            cluster.stop()
            raise
        return cluster


@dataclass(slots=True)
class RunningCluster:
    """The processes of a cluster that this process started."""

    layout: ClusterLayout
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def spawn(self) -> None:
        """Start all processes at the same time, the name server first."""
        for name, service in services(self.layout).items():
            self.processes[name] = service.spawn()

    def exited(self) -> dict[str, int]:
        """Return the exit codes of the processes that have ended, by name."""
        return {name: code for name, process in self.processes.items() if (code := process.poll()) is not None}

    def runs(self) -> bool:
        """Return True if any process still runs, including those that `node start` put in the place of others."""
        return len(self.exited()) < len(self.processes) or any(
            service.pid() is not None for service in services(self.layout).values()
        )

    def await_leaders(
        self,
        timeout_s: float = START_TIMEOUT_S,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> dict[str, NodeStatus]:
        """Wait until every group has a leader that accepts writes and that clients find; return the leaders by group.

        The leader must have the topics that a broker has from the start.  A node that does not answer is waited for
        during `timeout_s`; after that the others are enough.  `check` is called in every round and may raise.  `say` is
        told from time to time what is waited for.

        Raises `StartError` if the name server ended, if too many nodes of a group ended to elect, or if no node makes
        progress for `timeout_s`. The error has the end of that process's output.
        """
        patience = Patience(services(self.layout), timeout_s, say)
        while True:
            check()
            exited = self.exited()
            self._check_electable(exited)
            statuses = fetch_all(self.layout.places())
            leaders = leaders_by_group(statuses)
            obstacles = self._find_obstacles(leaders)
            listed = groups_clients_find(self.layout.namesrv) if not obstacles else set()
            for group in set(self.layout.group_names()) - listed - obstacles.keys():
                obstacles[group] = "the name server does not list it yet"
            is_starting = any(status is None and name not in exited for name, status in statuses.items())
            if not obstacles and (patience.is_late or not is_starting):
                return leaders
            reasons = "; ".join(f"{group}: {obstacle}" for group, obstacle in sorted(obstacles.items()))
            patience.look(statuses, reasons)
            if obstacles and patience.is_over:
                raise StartError(
                    f"{', '.join(sorted(obstacles))} had no leader that accepts writes, known to the name server, and "
                    f"no node of it got any further for {timeout_s:g} s; {reasons}; "
                    + self._last_words(
                        [place.node_id for group in sorted(obstacles) for place in self.layout.members(group)]
                    )
                )
            time.sleep(_POLL_S)

    def await_proxy(self, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Wait until the proxy listens, if there is one. Raises `StartError` if it ends, or takes too long."""
        deadline = time.monotonic() + timeout_s
        while self.layout.proxy is not None and is_free(self.layout.proxy.port):
            check()
            code = self.processes[PROXY].poll()
            if code is not None:
                raise StartError(f"the proxy ended with exit code {code}: {self._last_words([PROXY])}")
            if time.monotonic() >= deadline:
                raise StartError(f"the proxy does not listen after {timeout_s:g} s: {self._last_words([PROXY])}")
            time.sleep(_POLL_S)

    def _find_obstacles(self, leaders: dict[str, NodeStatus]) -> dict[str, str]:
        """Return by group why clients cannot be served yet. A leader that only refuses writes is no obstacle."""
        obstacles = {group: "no node leads" for group in self.layout.group_names() if group not in leaders}
        for group, status in leaders.items():
            obstacle = fetch_obstacle(self.layout.place(status.node_id))
            if obstacle is not None and obstacle != status.refusal:
                obstacles[group] = obstacle
        return obstacles

    def stop(self, say: Callable[[str], None] = lambda _: None) -> list[str]:
        """Stop everything at once and return the names of processes that had to be killed; see `stop_at_once`."""
        killed = stop_at_once(services(self.layout), say=say)
        for process in self.processes.values():
            # A process whose pid file was removed is known only here.
            if process.poll() is None:
                process.kill()
            process.wait()
        return killed

    def _check_electable(self, exited: dict[str, int]) -> None:
        if NAMESRV in exited:
            raise StartError(f"the name server ended with exit code {exited[NAMESRV]}: {self._last_words([NAMESRV])}")
        for group in self.layout.group_names():
            members = self.layout.members(group)
            ended = [place.node_id for place in members if place.node_id in exited]
            if len(ended) > len(members) // 2:
                raise StartError(
                    f"{len(ended)} of {len(members)} nodes of {group} ended (exit code {exited[ended[0]]}): "
                    + self._last_words(ended)
                )

    def _last_words(self, names: list[str]) -> str:
        services_by_name = services(self.layout)
        return "; ".join(f"{name}: {services_by_name[name].last_words()}" for name in names)


def services(layout: ClusterLayout) -> dict[str, Service]:
    """Return the processes of a cluster by name, the name server first."""
    return {
        NAMESRV: namesrv_service(layout.namesrv),
        **({} if layout.proxy is None else {PROXY: proxy_service(layout.proxy)}),
        **{place.node_id: broker_service(place) for place in layout.places()},
    }


def leaders_by_group(statuses: dict[str, NodeStatus | None]) -> dict[str, NodeStatus]:
    """Return the leaders that accept writes, by group. If two nodes of a group lead, the higher term counts."""
    leaders: dict[str, NodeStatus] = {}
    for status in statuses.values():
        if status is None or not status.leads:
            continue
        rival = leaders.get(status.group)
        if rival is None or rival.term < status.term:
            leaders[status.group] = status
    return leaders


def require_stopped(layout: ClusterLayout) -> None:
    """Raise `AdminError` naming the processes of the cluster that run."""
    running = [
        f"{name} (pid {pid})" for name, service in services(layout).items() if (pid := service.pid()) is not None
    ]
    if running:
        raise AdminError(
            f"the cluster in {layout.data_dir} is running already: {', '.join(running)}; "
            f"stop it with `dledger down --data {layout.data_dir}`, or start single nodes with `dledger node start`"
        )


@contextmanager
def up_lock(data_dir: Path) -> Iterator[None]:
    """Keep a second `up` of the same directory out; the kernel drops the lock with the process."""
    make_directory(data_dir, parents=True)
    with being_written(data_dir / LOCK_FILE):
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AdminError(f"another `dledger up` holds {data_dir / LOCK_FILE}: wait for it, or stop it") from None
        yield
    finally:
        os.close(descriptor)


def _choose_layout(options: UpOptions, existing: Manifest | None) -> ClusterLayout:
    data_dir = options.data_dir
    if existing is None:
        return ClusterLayout(
            data_dir,
            groups=DEFAULT_GROUPS if options.groups is None else options.groups,
            nodes=DEFAULT_NODES if options.nodes is None else options.nodes,
            namesrv_port=DEFAULT_NAMESRV_PORT if options.namesrv_port is None else options.namesrv_port,
            base_port=DEFAULT_BASE_PORT if options.base_port is None else options.base_port,
            proxy_port=options.proxy_port or 0,
            proxy_http_port=options.proxy_http_port or 0,
        )
    existing_layout = existing.layout(data_dir)
    for option, requested, actual in (
        ("--groups", options.groups, existing_layout.groups),
        ("--nodes", options.nodes, existing_layout.nodes),
    ):
        if requested is not None and requested != actual:
            raise LayoutError(
                f"{data_dir} holds a cluster of {existing_layout.groups} group(s) of {existing_layout.nodes} nodes, "
                f"{option} {requested} was given: give {actual} or nothing, or another directory for another cluster"
            )
    proxy_port = existing.proxy_port if options.proxy_port is None else options.proxy_port
    http_port = options.proxy_http_port
    if http_port is None:  # a cluster whose proxy is given up gives up its HTTP front, too
        http_port = existing.proxy_http_port if proxy_port else 0
    return ClusterLayout(
        data_dir,
        existing_layout.groups,
        existing_layout.nodes,
        existing.namesrv_port if options.namesrv_port is None else options.namesrv_port,
        existing.base_port if options.base_port is None else options.base_port,
        proxy_port,
        http_port,
    )


def require_engine(name: str) -> None:
    """Raise `AdminError` unless nodes can be started with an engine here."""
    try:
        engine_named(name)
    except ConfigError as error:
        raise AdminError(str(error)) from error


def _choose_manifest(
    layout: ClusterLayout, existing: Manifest | None, overrides: Overrides, engine: str | None
) -> Manifest:
    if existing is None:
        segment_bytes = overrides.segment_bytes or DEFAULT_SEGMENT_BYTES
        founded = founding_manifest(layout, overrides.cluster, segment_bytes, engine or NATIVE_ENGINE)
        return msgspec.structs.replace(founded, proxy_port=layout.proxy_port, proxy_http_port=layout.proxy_http_port)
    if engine not in (None, existing.engine):
        raise LayoutError(
            f"{layout.data_dir} holds a cluster of nodes with engine {existing.engine!r}, --engine {engine} was given:"
            " give nothing, or convert every node first with"
            f" `dledger node convert --data {layout.data_dir} --engine {engine} NODE-ID`"
        )
    for key, requested, actual in (
        ("cluster", overrides.cluster, existing.cluster),
        ("segment_bytes", overrides.segment_bytes, existing.segment_bytes),
    ):
        if requested is not None and requested != actual:
            raise LayoutError(
                f"{key} = {requested!r} was given, and {layout.data_dir} was made with {actual!r}, which cannot change "
                f"later: remove the key, or give another directory for another cluster"
            )
    return msgspec.structs.replace(
        existing,
        namesrv_port=layout.namesrv_port,
        base_port=layout.base_port,
        proxy_port=layout.proxy_port,
        proxy_http_port=layout.proxy_http_port,
    )


def _set_security(layout: ClusterLayout, manifest: Manifest, asked: Asked) -> Manifest:
    """Return the manifest, marked as secured or not from this start on; raises `AdminError`."""
    secured = with_security(layout, manifest)
    if secured.secured:
        require_files(layout, asked, is_known=manifest.secured)
        return secured
    if asked.renew_certificates or asked.new_key_file:
        raise AdminError(f"the cluster in {layout.data_dir} is not secured: `dledger up --secure` secures it")
    return msgspec.structs.replace(manifest, secured=asked.secure)
