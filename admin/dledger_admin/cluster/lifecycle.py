"""Starting and stopping whole local clusters.

`ClusterSetup.prepare` looks at everything that could be wrong before anything is written or started, so that bad input
changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
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
    read_overrides,
    stored_overrides,
    write_config_files,
)
from .files import being_written, make_directory
from .layout import DEFAULT_BASE_PORT, DEFAULT_GROUPS, DEFAULT_NAMESRV_PORT, DEFAULT_NODES, ClusterLayout
from .manifest import Manifest, read_manifest, write_manifest
from .ports import require_free
from .probes import NodeStatus, fetch_all, fetch_obstacle, groups_clients_find
from .processes import NAMESRV, Service, broker_service, namesrv_service, stop_at_once
from .securing import is_secured, make_secure
from .starting import START_TIMEOUT_S, Patience
from .validation import check_broker_config, check_namesrv_config

_POLL_S = 0.03


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `up` was asked for; None leaves the choice to the cluster's manifest, or to the defaults."""

    data_dir: Path
    groups: int | None = None
    nodes: int | None = None
    namesrv_port: int | None = None
    base_port: int | None = None
    config: Path | None = None
    engine: str | None = None
    secure: bool = False


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """A cluster that may be started: all checks passed, nothing written yet."""

    layout: ClusterLayout
    manifest: Manifest
    overrides: Overrides
    secure: bool

    @classmethod
    def prepare(cls, options: UpOptions) -> ClusterSetup:
        """Check everything that `up` needs; raises `AdminError` with one line on what is wrong."""
        check_data_dir(options.data_dir)
        found = read_manifest(options.data_dir)
        layout = _layout(options, found)
        require_stopped(layout)
        require_free(layout.ports())
        overrides = read_overrides(options.config, layout) if options.config else stored_overrides(layout)
        manifest = _manifest(layout, found, overrides, options.engine)
        require_engine(manifest.engine)
        for place in layout.places():
            check_broker_config(broker_table(layout, manifest, place, overrides), place.node_id)
        check_namesrv_config(namesrv_table(layout, overrides))
        return cls(layout, manifest, overrides, options.secure)

    def start(self) -> RunningCluster:
        """Complete the bootstrap, write the configuration, start every process; the caller holds `up_lock`."""
        manifest = complete_bootstrap(self.layout, self.manifest)
        if read_manifest(self.layout.data_dir) != manifest:
            write_manifest(self.layout.data_dir, manifest)
        if self.secure or is_secured(self.layout):  # what names the ports follows them
            make_secure(self.layout)
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
        """Whether any process is left: of those that were started here, or one that `node start` put in their place."""
        return len(self.exited()) < len(self.processes) or any(
            service.pid() is not None for service in services(self.layout).values()
        )

    def await_leaders(
        self,
        timeout_s: float = START_TIMEOUT_S,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> dict[str, NodeStatus]:
        """Wait until every group has a leader that accepts writes and that clients find, with the topics that a broker
        has from the start; return the leaders by group.  A node that does not answer yet is waited for, for
        `timeout_s`, and not missed then.  `check` is called in every round and may raise; `say` is told from time to
        time what is waited for.

        Raises `StartError` with the end of what the culprit printed: the name server ended, so many nodes of a group
        ended that it cannot elect, or no node has got any further for `timeout_s`.
        """
        patience = Patience(services(self.layout), timeout_s, say)
        while True:
            check()
            exited = self.exited()
            self._check_electable(exited)
            statuses = fetch_all(self.layout.places())
            leaders = leaders_by_group(statuses)
            obstacles = self._obstacles(leaders)
            listed = groups_clients_find(self.layout.namesrv) if not obstacles else set()
            for group in set(self.layout.group_names()) - listed - obstacles.keys():
                obstacles[group] = "the name server does not list it yet"
            starting = any(status is None and name not in exited for name, status in statuses.items())
            if not obstacles and (patience.is_late or not starting):
                return leaders
            found = "; ".join(f"{group}: {obstacle}" for group, obstacle in sorted(obstacles.items()))
            patience.look(statuses, found)
            if obstacles and patience.is_over:
                raise StartError(
                    f"{', '.join(sorted(obstacles))} had no leader that accepts writes, known to the name server, and "
                    f"no node of it got any further for {timeout_s:g} s; {found}; "
                    + self._words(
                        [place.node_id for group in sorted(obstacles) for place in self.layout.members(group)]
                    )
                )
            time.sleep(_POLL_S)

    def _obstacles(self, leaders: dict[str, NodeStatus]) -> dict[str, str]:
        """Return why clients cannot be served yet, by group; empty once they can, be it to read only (`refusals`)."""
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
            # One whose pid file was taken away is known only here.
            if process.poll() is None:
                process.kill()
            process.wait()
        return killed

    def _check_electable(self, exited: dict[str, int]) -> None:
        if NAMESRV in exited:
            raise StartError(f"the name server ended with exit code {exited[NAMESRV]}: {self._words([NAMESRV])}")
        for group in self.layout.group_names():
            members = self.layout.members(group)
            gone = [place.node_id for place in members if place.node_id in exited]
            if len(gone) > len(members) // 2:
                raise StartError(
                    f"{len(gone)} of {len(members)} nodes of {group} ended (exit code {exited[gone[0]]}): "
                    + self._words(gone)
                )

    def _words(self, names: list[str]) -> str:
        known = services(self.layout)
        return "; ".join(f"{name}: {known[name].last_words()}" for name in names)


def services(layout: ClusterLayout) -> dict[str, Service]:
    """Return the processes of a cluster by name, the name server first."""
    return {
        NAMESRV: namesrv_service(layout.namesrv),
        **{place.node_id: broker_service(place) for place in layout.places()},
    }


def leaders_by_group(statuses: dict[str, NodeStatus | None]) -> dict[str, NodeStatus]:
    """Return the leaders that accept writes; of two that both think so, the one of the higher term."""
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


def _layout(options: UpOptions, found: Manifest | None) -> ClusterLayout:
    data_dir = options.data_dir
    if found is None:
        return ClusterLayout(
            data_dir,
            groups=DEFAULT_GROUPS if options.groups is None else options.groups,
            nodes=DEFAULT_NODES if options.nodes is None else options.nodes,
            namesrv_port=DEFAULT_NAMESRV_PORT if options.namesrv_port is None else options.namesrv_port,
            base_port=DEFAULT_BASE_PORT if options.base_port is None else options.base_port,
        )
    present = found.layout(data_dir)
    for option, asked, has in (("--groups", options.groups, present.groups), ("--nodes", options.nodes, present.nodes)):
        if asked is not None and asked != has:
            raise LayoutError(
                f"{data_dir} holds a cluster of {present.groups} group(s) of {present.nodes} nodes, {option} {asked} "
                f"was given: give {has} or nothing, or another directory for another cluster"
            )
    return ClusterLayout(
        data_dir,
        present.groups,
        present.nodes,
        found.namesrv_port if options.namesrv_port is None else options.namesrv_port,
        found.base_port if options.base_port is None else options.base_port,
    )


def require_engine(name: str) -> None:
    """Raise `AdminError` unless nodes can be started with an engine here."""
    try:
        engine_named(name)
    except ConfigError as error:
        raise AdminError(str(error)) from error


def _manifest(layout: ClusterLayout, found: Manifest | None, overrides: Overrides, engine: str | None) -> Manifest:
    if found is None:
        segment_bytes = overrides.segment_bytes or DEFAULT_SEGMENT_BYTES
        return founding_manifest(layout, overrides.cluster, segment_bytes, engine or NATIVE_ENGINE)
    if engine not in (None, found.engine):
        raise LayoutError(
            f"{layout.data_dir} holds a cluster of nodes with engine {found.engine!r}, --engine {engine} was given:"
            " give nothing, or convert every node first with"
            f" `dledger node convert --data {layout.data_dir} --engine {engine} NODE-ID`"
        )
    for key, asked, has in (
        ("cluster", overrides.cluster, found.cluster),
        ("segment_bytes", overrides.segment_bytes, found.segment_bytes),
    ):
        if asked is not None and asked != has:
            raise LayoutError(
                f"{key} = {asked!r} was given, and {layout.data_dir} was made with {has!r}, which cannot change later: "
                f"remove the key, or give another directory for another cluster"
            )
    return msgspec.structs.replace(found, namesrv_port=layout.namesrv_port, base_port=layout.base_port)
