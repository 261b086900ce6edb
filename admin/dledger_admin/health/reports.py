"""Reports of name servers and nodes, and the result that comes of them: the JSON of `dledger cluster health`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dledger_remoting.route import BrokerData, RefusedGroup

from ..cluster.probes import NodeStatus


class PeerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A member as its leader sees it.

    `lag` is in entries, `contact_ms` is the time since its last answer. `match_index` is the last entry that it is
    known to have. `clock_ahead_ms` compares its clock with the leader's, None until the member has told it.
    """

    node_id: str
    match_index: int | None = None
    lag: int = 0
    contact_ms: int = 0
    clock_ahead_ms: int | None = None


class NodeReport(NodeStatus, frozen=True, kw_only=True):
    """A node's status with what an operator has to know besides; a node of an older version tells less."""

    last_index: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    elections: int = 0
    disk_used_permille: int = 0
    peers: tuple[PeerReport, ...] = ()
    failure: str | None = None
    refusal: str | None = None
    corrupt_bytes: int = 0
    repairs: int = 0
    rotten_snapshots: int = 0
    snapshots: int | None = None
    snapshot_position: int = -1
    verified_position: int = -1
    scrub_rounds: int = 0


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer to code 28; `report` is None for a broker that is none of ours, or too old to tell. `gauges` are
    the numbers that its features show at `/metrics`. `stored_per_s` and `delivered_per_s` count messages of the last
    ten seconds.
    """

    version: str | None = None
    uptime_s: int | None = None
    is_draining: bool = False
    stored_per_s: float | None = None
    delivered_per_s: float | None = None
    gauges: Mapping[str, float] = {}
    addresses: Mapping[str, str] = {}
    http: str | None = None
    report: NodeReport | None = None


class NameServerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of one name server: its nodes by broker group, and the groups that it refuses for their names.

    `groups` is None if it did not answer; `error` says why.
    """

    address: str
    groups: Mapping[str, BrokerData] | None = None
    refused: Mapping[str, RefusedGroup] = {}
    error: str | None = None


class Survey(msgspec.Struct, frozen=True):
    """All answers at about the same time; of nodes by client address.

    A text stands for a node that told nothing: `does not answer: …`, or `refuses to tell: …`.
    """

    name_servers: list[NameServerAnswer]
    nodes: dict[str, NodeAnswer | str]


class Problem(msgspec.Struct, frozen=True):
    """Something that an operator has to see to; `subject` is a node, a broker group, a name server or `cluster`."""

    subject: str
    text: str


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `lag` counts entries behind the leader's end, `disk_used` is a share, `clock_ahead_ms` is
    against the leader's clock; None is what nobody could tell.
    """

    broker_group: str
    node: str | None
    address: str | None
    role: str
    term: int | None = None
    commit: int | None = None
    lag: int | None = None
    disk_used: float | None = None
    version: str | None = None
    uptime_s: int | None = None
    clock_ahead_ms: int | None = None


class ClusterHealth(msgspec.Struct, frozen=True):
    """Result of `cluster health`."""

    healthy: bool
    name_servers: dict[str, bool]
    """By address: True if the name server answers."""
    nodes: list[NodeHealth]
    problems: list[Problem]
    warnings: list[Problem] = []
    """Warnings, such as a disk above the watermark. The cluster counts as healthy."""
    retention: list[Problem] = []
    """The messages of each broker group that retention deletes next, and the time."""
    survival: list[Problem] = []
    """Number of further failures that each broker group survives."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits beyond which a node is not healthy: `lag` in entries, `disk_used` as a share."""

    lag: int = 1000
    disk_used: float = 0.9
    clock_ms: int = 5_000
    silence_ms: int = 5_000
    """Maximum time in ms since a member last answered its leader, even if the member answers us."""
