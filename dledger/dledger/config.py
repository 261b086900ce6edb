"""Configuration of a replica and of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from dledger.consensus.engine import RaftSettings
from dledger.errors import ConfigError
from dledger.net.settings import PeerTls
from dledger.replication_keys import Replication
from dledger_base.secret import GroupSecrets

Address = tuple[str, int]

MIN_SEGMENT_BYTES = 64 << 10
_KEYS: Final = Replication()
"""Keys of an empty configuration file: the defaults are declared there."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Configuration of a replica. Times are in milliseconds, sizes in bytes.

    `peers` are the node ids of the whole group, including this node's.
    """

    cluster: str
    group: str
    node_id: str
    peers: frozenset[str]
    learners: frozenset[str] = frozenset()
    """Nodes that stay learners."""
    flush: Literal["sync", "async"] = "sync"
    """With `sync`, an acknowledgement means fdatasync on a majority.

    With `async` it means written on a majority. A power failure of a majority may then lose what was acknowledged in
    the last 100 ms or 16 MiB.
    """
    segment_bytes: int = _KEYS.segment_bytes
    heartbeat_ms: int = _KEYS.heartbeat_ms
    election_min_ms: int = _KEYS.election_min_ms
    election_max_ms: int = _KEYS.election_max_ms
    max_uncommitted_bytes: int = _KEYS.max_uncommitted_bytes
    recent_bytes: int = 8 << 20
    """Number of bytes of the newest entries that are kept in memory."""
    snapshot_interval_ms: int = _KEYS.snapshot_interval_s * 1000
    """Minimum time between two marked segment starts."""
    scrub_interval_ms: int = 3_600_000
    """Pause between two verifications of the whole log in the background."""
    reserve_bytes: int = _KEYS.reserve_bytes
    """Size of the disk space kept back for no-ops, membership entries and trims.

    At most a quarter of a segment is used.
    """
    data_dir: str = ""
    """Directory where an operator finds the replica's files; for texts only."""
    max_open_segments: int | None = None
    """Maximum number of segment files that stay open; None: as the limit of the process allows."""
    fetch_pause_ms: int | None = None
    """Pause before the earlier part of the log is fetched, which others keep and this replica lacks.

    The same pause follows a failed attempt. With None nothing is fetched.
    """
    derived: tuple[str, ...] = ()
    """Directories of the node whose missing files are made anew from the log.

    They are removed when a fetched part is put in front of the log.
    """

    def __post_init__(self) -> None:
        if self.node_id not in self.peers:
            raise ConfigError(f"node_id {self.node_id!r} is none of the peers {sorted(self.peers)}: add it to peers")
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"flush is {self.flush!r}: use 'sync' or 'async'")
        if self.segment_bytes < MIN_SEGMENT_BYTES:
            raise ConfigError(f"segment_bytes is {self.segment_bytes}: use at least {MIN_SEGMENT_BYTES}")
        if not 0 < self.heartbeat_ms * 2 <= self.election_min_ms <= self.election_max_ms:
            raise ConfigError(
                f"heartbeat_ms {self.heartbeat_ms}, election_min_ms {self.election_min_ms}, election_max_ms"
                f" {self.election_max_ms}: the first must be positive and at most half the second, the second at most"
                " the third, or followers call elections against a live leader"
            )
        if self.max_uncommitted_bytes < 1 << 20:
            raise ConfigError(f"max_uncommitted_bytes is {self.max_uncommitted_bytes}: use at least {1 << 20}")

    @property
    def raft(self) -> RaftSettings:
        return RaftSettings(self.heartbeat_ms / 1000, self.election_min_ms / 1000, self.election_max_ms / 1000)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Configuration of one node of a group.

    `peers` has the address to dial for every *other* node of the group. That node need not listen there, because a
    proxy may be between. The log, not `peers`, decides who is a member.
    """

    cluster: str
    group: str
    node_id: str
    data_dir: Path
    secret: bytes | GroupSecrets
    bind: Address = ("127.0.0.1", 0)
    advertised: Address | None = None
    """Address at which others reach `bind`; None: the address where it listens."""
    peers: Mapping[str, Address] = field(default_factory=dict)
    learners: frozenset[str] = frozenset()
    flush: Literal["sync", "async"] = "sync"
    segment_bytes: int = _KEYS.segment_bytes
    heartbeat_ms: int = _KEYS.heartbeat_ms
    election_min_ms: int = _KEYS.election_min_ms
    election_max_ms: int = _KEYS.election_max_ms
    max_uncommitted_bytes: int = _KEYS.max_uncommitted_bytes
    recent_bytes: int = 8 << 20
    snapshot_interval_ms: int = _KEYS.snapshot_interval_s * 1000
    """Minimum time between two snapshots, more if they take long to write; 0: one at every segment's start."""
    scrub_interval_ms: int = 3_600_000
    reserve_bytes: int = _KEYS.reserve_bytes
    tls: PeerTls | None = None
    """TLS of the links; None for links without TLS."""
    bootstrap: bool = False
    """True to found a group of this one voter in an empty directory.

    If a peer is in a group, the node joins that instead.
    """
    bootstrap_alone: bool = False
    """True to found the group without asking the peers."""
    fetch_pause_ms: int | None = 30_000
    derived: tuple[str, ...] = ()
    """Directories as in `ReplicaConfig.derived`."""

    @property
    def replica(self) -> ReplicaConfig:
        return ReplicaConfig(
            self.cluster,
            self.group,
            self.node_id,
            frozenset((*self.peers, self.node_id)),
            self.learners,
            self.flush,
            self.segment_bytes,
            self.heartbeat_ms,
            self.election_min_ms,
            self.election_max_ms,
            self.max_uncommitted_bytes,
            self.recent_bytes,
            self.snapshot_interval_ms,
            self.scrub_interval_ms,
            self.reserve_bytes,
            str(self.data_dir),
            fetch_pause_ms=self.fetch_pause_ms,
            derived=self.derived,
        )
