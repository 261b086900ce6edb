"""`verify`: reads the whole log of every follower and learner, and compares the logs."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ..errors import JobError, RefusedError, SourceError
from ..nodes import NameServers
from ..options import ReadOptions
from ..pins import pin as pinned
from ..pins import release_pin
from ..plans import READ_PLAN, Cluster, Cut, GroupPlan, parse_plan
from ..wire import Connection
from .inputs import OnPhase, checked_options, silent
from .log_checks import (
    BEHIND,
    BUSY,
    PAUSE_SECONDS,
    SILENCE_SECONDS,
    LogRange,
    RangeCheck,
    TopicBounds,
    check_range,
    read_log,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICE_BYTES: Final = 32 << 20
PIN_MILLIS: Final = 600_000
MAX_FINDINGS: Final = 100
_ROLE_REFUSED: Final = 20110
Verdict: TypeAlias = Literal["valid", "invalid", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Reason of a verdict: a violation, or an unreadable part, at a byte position of a node's log."""

    group: str
    node: str
    position: int
    what: str
    verdict: Verdict = "invalid"


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    """Size and content of one node's log. `deleted_records` belong to deleted topics, or to trimmed offsets."""

    group: str
    node: str
    first_position: int
    end_position: int
    entries: int
    records: int
    deleted_records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopicCount:
    """Number of messages of a topic that a group keeps."""

    group: str
    topic: str
    queues: int
    messages: int


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of `verify`.

    `valid`: everything was read and holds. `invalid`: the first of `findings` is the first violation. `unknown`: no
    violation was seen, but not everything could be read.
    """

    verdict: Verdict
    replicas: list[ReplicaSummary]
    topics: list[TopicCount]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Replica:
    """A node that is read, and its plan."""

    node: str
    address: str
    plan: GroupPlan


def verify(
    spark: SparkSession,
    *,
    namesrv: str,
    groups: Sequence[str] = (),
    include_leader: bool = False,
    min_nodes: int = 2,
    read_timeout: str = "60s",
    on_phase: OnPhase = silent,
) -> VerifyResult:
    """Read the committed log of every follower and learner of these broker groups (all by default), and check it.

    It checks:

    - every entry's checksums, the chain through all of them, and every record;
    - that each queue's offsets have neither gap nor repetition between the first kept and the last offset;
    - that all these nodes have the same bytes.

    The leader is read only if `include_leader` is true. If fewer than `min_nodes` nodes of a group could be read, the
    verdict is at best `unknown`. Name servers do not list a node that is down, and a comparison takes two nodes. The
    result has at most `MAX_FINDINGS` findings. Raises `SourceError` if a group cannot be asked. Raises `JobError` if a
    group does not exist, or none of its nodes can be read.
    """
    options = checked_options(
        {
            "namesrv": namesrv,
            "subscribePattern": ".*",
            "readFrom": "any" if include_leader else "follower",
            "readTimeout": read_timeout,
        }
    )
    roles = "follower,learner,leader" if include_leader else "follower,learner"
    checked: list[VerifyResult] = []
    with closing(Cluster(options)) as cluster, NameServers(options.namesrv) as name_servers:
        addresses = name_servers.groups()
        for group in groups or sorted(addresses):
            if group not in addresses:
                raise JobError(f"there is no broker group {group!r}, only {', '.join(sorted(addresses))}")
            on_phase(f"asking the nodes of {group}")
            nodes, unreadable = _request_plans(
                addresses[group].values(), roles, cluster.commit(group), options.read_timeout_s
            )
            if not nodes:
                raise JobError(
                    f"no follower of {group} can be read ({'; '.join(unreadable.values()) or 'it has none'})"
                )
            checked.append(_verify_group(spark, cluster, nodes, roles, options, on_phase))
            unread_findings = [Finding(group, address, 0, why, "unknown") for address, why in unreadable.items()]
            if len(nodes) < min_nodes:
                what = f"only {len(nodes)} of at least {min_nodes} nodes could be read"
                unread_findings.append(Finding(group, nodes[0].node, 0, what, "unknown"))
            checked[-1].findings.extend(unread_findings)
    findings = [finding for result in checked for finding in result.findings]
    findings.sort(key=lambda finding: (finding.verdict != "invalid", finding.group, finding.position))
    return VerifyResult(
        _verdict(findings),
        [replica for result in checked for replica in result.replicas],
        [topic for result in checked for topic in result.topics],
        findings[:MAX_FINDINGS],
    )


def _verify_group(
    spark: SparkSession, cluster: Cluster, nodes: list[Replica], roles: str, options: ReadOptions, on_phase: OnPhase
) -> VerifyResult:
    """Return the result for these nodes of one broker group."""
    plan = common_plan(nodes)
    group, topics = plan.group, topic_bounds(plan)
    pin = f"verify-{uuid.uuid4()}"
    parts = log_ranges(nodes, roles, pin, options)
    findings: list[Finding] = []
    checks: list[RangeCheck] = []
    if parts:
        pinned(cluster, options.namesrv, group, pin, parts[0].start, PIN_MILLIS)
        try:
            size_bytes = sum(part.end - part.start for part in parts)
            on_phase(f"reading {size_bytes / 1e6:,.1f} MB of {group} from {len(nodes)} nodes")
            checks = spark.sparkContext.parallelize(parts, len(parts)).map(check_range).collect()
            findings = compare(group, checks, parts)
        finally:
            release_pin(cluster, group, pin)
    counts = [
        TopicCount(group, topic.name, len(topic.queues), sum(end - first for first, end in topic.queues.values()))
        for topic in topics
    ]
    return VerifyResult(_verdict(findings), list(_summarize(group, checks)), counts, findings)


def _verdict(findings: Sequence[Finding]) -> Verdict:
    verdicts = {finding.verdict for finding in findings}
    return "invalid" if "invalid" in verdicts else "unknown" if verdicts else "valid"


def topic_bounds(plan: GroupPlan) -> tuple[TopicBounds, ...]:
    """Return the topics of a plan, with the offsets that each queue keeps. Topics without messages are left out."""
    queues: dict[str, dict[int, tuple[int, int]]] = {}
    for queue, (first, end) in sorted(plan.bounds.items()):
        if first < end:
            queues.setdefault(queue.topic, {})[queue.queue_id] = (first, end)
    return tuple(TopicBounds(name, plan.created[name], ids) for name, ids in queues.items())


def common_plan(nodes: Sequence[Replica]) -> GroupPlan:
    """Return the plan that holds for all nodes: that of the node that keeps the least of the log.

    Nodes plan one after another. If the log is trimmed in between, earlier plans contain entries that are gone.
    """
    return max((node.plan for node in nodes), key=lambda plan: (plan.first_position, plan.commit))


def log_ranges(nodes: Sequence[Replica], roles: str, pin: str, options: ReadOptions) -> list[LogRange]:
    """Return the ranges to read of each node. They are the same for all nodes, from a plan that holds for all."""
    plan = common_plan(nodes)
    cuts = plan.cuts
    ends: list[Cut | None] = [*cuts[1:], None]
    topics = topic_bounds(plan)
    return [
        LogRange(
            group=plan.group,
            node=node.node,
            address=node.address,
            roles=roles,
            pin=pin,
            start=cut.position,
            end=plan.commit if next_cut is None else next_cut.position,
            index=cut.log_index,
            previous_chain=cut.previous_chain,
            end_chain=None if next_cut is None else next_cut.previous_chain,
            topics=topics,
            timeout_s=options.read_timeout_s,
        )
        for cut, next_cut in zip(cuts, ends, strict=True)
        for node in nodes
    ]


def compare(group: str, checks: Sequence[RangeCheck], parts: Sequence[LogRange]) -> list[Finding]:
    """Return violations and unreadable parts: in single ranges, between nodes, and along each queue."""
    findings: list[Finding] = []
    for check in checks:
        if check.invalid is not None:
            findings.append(Finding(group, check.node, check.position, check.invalid))
        if check.unreadable is not None:
            findings.append(Finding(group, check.node, check.position, check.unreadable, "unknown"))
    sound = [
        (check, part)
        for check, part in zip(checks, parts, strict=True)
        if check.invalid is None and check.unreadable is None
    ]
    for _, same_range in groupby(sound, key=lambda pair: pair[0].start):
        (reference, reference_part), *others = same_range
        for check, part in others:
            if check.sha256 != reference.sha256:
                position = _find_difference(reference_part, part)
                what = f"its bytes differ from those of {reference.node}"
                findings.append(Finding(group, check.node, position, what))
    for node in sorted({check.node for check in checks}):
        node_checks = [check for check in checks if check.node == node]
        if all(check.invalid is None and check.unreadable is None for check in node_checks):
            findings += queue_gaps(group, node, node_checks, parts[0].topics)
    return findings


def queue_gaps(group: str, node: str, checks: Iterable[RangeCheck], topics: Iterable[TopicBounds]) -> Iterable[Finding]:
    """Yield the places where a queue's offsets have a gap between two ranges of a node's log, or end too early."""
    expected = {(topic.name, queue_id): bounds[0] for topic in topics for queue_id, bounds in topic.queues.items()}
    place = 0
    for check in sorted(checks, key=lambda check: check.start):
        place = check.end
        for (topic, queue_id), run in check.queues.items():
            if run.first != expected[topic, queue_id]:
                what = f"{topic}/{queue_id} goes on with offset {run.first}, not with {expected[topic, queue_id]}"
                yield Finding(group, node, check.start, what)
            expected[topic, queue_id] = run.last + 1
    for bounds in topics:
        for queue_id, (_, end) in bounds.queues.items():
            if expected[bounds.name, queue_id] != end:
                what = f"{bounds.name}/{queue_id} ends with offset {expected[bounds.name, queue_id] - 1}, not {end - 1}"
                yield Finding(group, node, place, what)


def _request_plans(
    addresses: Iterable[str], roles: str, commit: int, timeout_s: float
) -> tuple[list[Replica], dict[str, str]]:
    """Return the nodes with an accepted role, and for unreadable nodes the reason, by address.

    A node that refuses because of its role is in neither.
    """
    nodes: list[Replica] = []
    unreadable: dict[str, str] = {}
    for address in addresses:
        try:
            body = _request_plan(address, roles, commit, timeout_s)
        except RefusedError as error:
            if error.code != _ROLE_REFUSED:
                unreadable[address] = str(error)
        except SourceError as error:
            unreadable[address] = str(error)
        else:
            document: dict[str, Any] = json.loads(body)
            nodes.append(Replica(document["node"], address, parse_plan(body)))
    return sorted(nodes, key=lambda node: node.node), unreadable


def _request_plan(address: str, roles: str, commit: int, timeout_s: float) -> bytes:
    """Return a node's encoded plan, as soon as the node has applied everything below `commit`.

    Raises `SourceError` or `RefusedError`, also if that takes longer than `timeout_s`.
    """
    ext = {"roles": roles, "minCommit": str(commit), "sliceBytes": str(SLICE_BYTES)}
    deadline = time.monotonic() + timeout_s
    with Connection(address, SILENCE_SECONDS) as connection:
        while True:
            response = connection.request(READ_PLAN, ext)
            if response.code not in (BEHIND, BUSY) or time.monotonic() >= deadline:
                return response.check().body
            time.sleep(PAUSE_SECONDS)


def _summarize(group: str, checks: Sequence[RangeCheck]) -> Iterable[ReplicaSummary]:
    for node, grouped in groupby(
        sorted(checks, key=lambda check: (check.node, check.start)), key=lambda check: check.node
    ):
        node_checks = list(grouped)
        yield ReplicaSummary(
            group,
            node,
            node_checks[0].start,
            node_checks[-1].end,
            sum(check.entries for check in node_checks),
            sum(check.records for check in node_checks),
            sum(check.other for check in node_checks),
            sum(check.size_bytes for check in node_checks),
        )


def _find_difference(reference: LogRange, other: LogRange) -> int:
    """Return the first position at which two nodes' bytes of a range differ, its start if a new read fails."""
    try:
        for (position, left), (_, right) in zip(read_log(reference), read_log(other), strict=False):
            if left != right:
                difference = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
                return position + (min(len(left), len(right)) if difference is None else difference)
    except SourceError:
        pass
    return reference.start
