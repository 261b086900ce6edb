"""Plans: the content of a cluster at one moment, from followers, never behind earlier acknowledgements.

`READ_COMMIT` gives the position below which all messages lie that were acknowledged before. The leader confirms it, but
no message is read from the leader. `READ_PLAN` gives the readable part of a follower that has applied that much.
Formats: `docs/wire.md`, "Reading the log".
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from .errors import NO_PERMISSION, DeniedError, NoNameServerError, OptionError, RefusedError, SourceError, WireError
from .nodes import LEADER_ID, NameServers, ReplicaReader
from .offsets import QUEUES_PER_GROUP, Offsets, Queue
from .options import ReadOptions
from .wanted import is_left_out
from .wire import Connection, Response

_logger = logging.getLogger(__name__)

SEARCH_OFFSET_BY_TIMESTAMP: Final = 29
READ_PLAN: Final = 20010
READ_COMMIT: Final = 20012
PIN_LOG: Final = 20013
UNPIN_LOG: Final = 20014
PLAN_VERSION: Final = 1
AUTO_CREATE_TOPIC: Final = "TBW102"

_TOPIC_NOT_EXIST: Final = 17
GROUP_NOT_EXIST: Final = 26
INVALID_PARAMETER: Final = 29
TRIMMED: Final = 20112
_PERMANENT_REFUSALS: Final = frozenset({_TOPIC_NOT_EXIST, GROUP_NOT_EXIST, INVALID_PARAMETER, TRIMMED})
"""Codes of refusals that another attempt does not change."""
_ASK_TIMEOUT_S: Final = 10.0
MAX_ASKED_EACH_TIME: Final = 256
"""Maximum number of topics whose routes are asked for each time. If there are more, only new ones are asked for."""
ROUTES_SECONDS: Final = 30.0
"""Interval in seconds at which the routes of all topics are asked for, however many there are."""


class Cut(NamedTuple):
    """Start of a slice: position and index of an entry, the chain crc before it, the store times in the slice."""

    position: int
    log_index: int
    previous_chain: int
    min_time: int | None
    max_time: int | None


class QueueBounds(NamedTuple):
    """The offsets of a queue that can be read: from `first` to below `end`."""

    first: int
    end: int


@dataclass(slots=True)
class GroupPlan:
    """The readable part of a broker group, by one of its nodes at one applied position.

    `created` has for each topic the position from which on records belong to its present incarnation.
    """

    group: str
    ordinal: int
    first_position: int
    commit: int
    cuts: list[Cut]
    created: dict[str, int]
    bounds: dict[Queue, QueueBounds]
    group_identity: str = ""
    """Identity that its leader reports, empty without any."""

    def partition(self, queue: Queue) -> int:
        """Return the partition number of a queue, which is unique within its topic."""
        return self.ordinal * QUEUES_PER_GROUP + queue.queue_id


def parse_plan(body: bytes) -> GroupPlan:
    """Return the plan in an answer's body. Raises `SourceError` for another version of its layout."""
    document: dict[str, Any] = json.loads(body)
    if document["version"] != PLAN_VERSION:
        raise SourceError(f"the broker's read plan has version {document['version']}, only {PLAN_VERSION} is known")
    group = document["group"]
    return GroupPlan(
        group=group,
        ordinal=document["ordinal"],
        first_position=document["firstPosition"],
        commit=document["commit"],
        cuts=[
            Cut(cut["position"], cut["index"], cut["previousChain"], cut.get("minTime"), cut.get("maxTime"))
            for cut in document["cuts"]
        ],
        created={topic["name"]: topic["created"] for topic in document["topics"]},
        bounds={
            Queue(topic["name"], group, queue["id"]): QueueBounds(queue["first"], queue["next"])
            for topic in document["topics"]
            for queue in topic["queues"]
        },
    )


def identity_ext(identity: str) -> dict[str, str]:
    """Return request fields that make a node refuse a read if it belongs to another group of the same name."""
    return {"groupIdentity": identity} if identity else {}


class Cluster:
    """Asks name servers and brokers on behalf of a planner; one connection per group is kept."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._name_servers = NameServers(options.namesrv)
        self._readers: dict[str, ReplicaReader] = {}
        self._connections: dict[str, Connection] = {}
        self._routes: dict[str, dict[str, int]] = {}
        self._routed_at = float("-inf")
        self._plan_cache: dict[str, tuple[tuple[int, str], frozenset[str], GroupPlan]] = {}

    def close(self) -> None:
        """Close all connections."""
        self._name_servers.close()
        for reader in self._readers.values():
            reader.close()
        for connection in self._connections.values():
            connection.close()
        self._readers.clear()
        self._connections.clear()

    def groups(self) -> list[str]:
        """Return the names of all broker groups that name servers know."""
        return list(self._name_servers.groups())

    def queues(self, *, all_exist: bool = True) -> list[Queue]:
        """Return the existing queues of the subscription, sorted.

        Raises `OptionError` if `all_exist` and the subscription names a topic or queue that does not exist. Also raises
        it if `assign` names queues without a broker group, and the topic has several.
        """
        subscription = self._options.subscription
        if subscription.assigned is not None:
            return sorted(self._resolve_assigned(subscription.assigned, all_exist=all_exist))
        topics: Iterable[str] = subscription.topics
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            names = self._name_servers.topics()
            own_topics = self._name_servers.own_topics()
            topics = [
                name for name in names if pattern.fullmatch(name) and name not in own_topics and not is_left_out(name)
            ]
        queues_by_topic = self._find_queues(list(topics))
        missing = next((topic for topic, queues in queues_by_topic.items() if not queues), None)
        if missing is not None and all_exist and subscription.pattern is None:
            raise OptionError("subscribe", ",".join(subscription.topics), f"topic {missing!r} does not exist")
        return sorted(queue for queues in queues_by_topic.values() for queue in queues)

    def subscribes(self, queue: Queue) -> bool:
        """Return True if a queue is part of the subscription. It need not exist."""
        subscription = self._options.subscription
        if subscription.assigned is not None:
            return queue in set(_list_assigned(subscription.assigned, queue.group))
        if subscription.pattern is not None:
            return re.fullmatch(subscription.pattern, queue.topic) is not None
        return queue.topic in subscription.topics

    def left(self, plan: GroupPlan) -> set[Queue]:
        """Return all queues of a plan, also those that routes no longer name; none if `assign` names the queues."""
        return set() if self._options.subscription.assigned is not None else set(plan.bounds)

    def _find_queues(self, topics: list[str]) -> dict[str, list[Queue]]:
        """Return the queues of each topic.

        If there are more than `MAX_ASKED_EACH_TIME` topics, only new ones are asked for, and all of them every
        `ROUTES_SECONDS`. Until then, the plans of broker groups have new queues of recorded topics.
        """
        now = time.monotonic()
        if len(topics) <= MAX_ASKED_EACH_TIME or now - self._routed_at >= ROUTES_SECONDS:
            self._routes.clear()
            self._routed_at = now
        self._routes |= self._name_servers.queues([topic for topic in topics if not self._routes.get(topic)])
        return {
            topic: [
                Queue(topic, group, number) for group, count in self._routes[topic].items() for number in range(count)
            ]
            for topic in topics
        }

    def _resolve_assigned(self, assigned: Mapping[str, Any], *, all_exist: bool) -> Iterable[Queue]:
        text = json.dumps(assigned)
        for topic, value in assigned.items():
            existing = set(self._find_queues([topic])[topic])
            groups = sorted({queue.group for queue in existing})
            if not existing and not all_exist:
                continue
            if not existing:
                raise OptionError("assign", text, f"topic {topic!r} does not exist")
            if not isinstance(value, dict):
                if len(groups) != 1:
                    raise OptionError(
                        "assign",
                        text,
                        f"{topic!r} has queues on {len(groups)} broker groups ({', '.join(groups)}): name them",
                    )
                value = {groups[0]: value}
            for group, numbers in value.items():
                for number in dict.fromkeys(numbers):
                    queue = Queue(topic, group, number)
                    if queue in existing or queue in self.plan(group, [topic]).bounds:
                        yield queue
                    elif all_exist:
                        raise OptionError("assign", text, f"there is no queue {queue}")

    def commit(self, group: str) -> int:
        """Return the position below which all messages lie that were acknowledged before the call."""
        return int(self._request_commit(group)["commit"])

    def _request_commit(self, group: str) -> Mapping[str, str]:
        return self.ask(group, READ_COMMIT, [{}])[0].ext

    def plan(
        self, group: str, topics: Iterable[str], *, slice_bytes: int | None = None, start: int = 0, times: bool = False
    ) -> GroupPlan:
        """Return the readable part of `topics` at a replica of a group that has applied all earlier acknowledgements.

        It has the cuts of slices from byte `start` on only if `slice_bytes` is given. The cuts have the store times of
        slices only if `times`.
        """
        commit_fields = self._request_commit(group)
        commit, identity = int(commit_fields["commit"]), commit_fields.get("groupIdentity", "")
        names = frozenset(topics)
        if slice_bytes is None and self._plan_cache.get(group, (None, None))[:2] == ((commit, identity), names):
            return self._plan_cache[group][2]  # nothing was sent, trimmed, made or deleted since
        ext = {
            "roles": self._options.roles,
            "topics": ",".join(sorted(names)),
            "minCommit": str(commit),
            "times": "true" if times else "false",
            **identity_ext(identity),
        }
        if slice_bytes is None:
            ext["startPosition"] = str(commit)
        else:
            ext |= {"sliceBytes": str(slice_bytes), "startPosition": str(start)}
        plan = replace(parse_plan(self.reader(group).request(READ_PLAN, ext).body), group_identity=identity)
        if slice_bytes is None and plan.commit == commit:
            self._plan_cache[group] = (commit, identity), names, plan
        return plan

    def offsets_at(self, times: Offsets) -> Offsets:
        """Return per queue the offset of the first message stored at or after a time in ms; else the queue's end."""
        offsets: Offsets = {}
        for group in sorted({queue.group for queue in times}):
            queues = [queue for queue in sorted(times) if queue.group == group]
            answers = self.ask(
                group,
                SEARCH_OFFSET_BY_TIMESTAMP,
                [
                    {"topic": queue.topic, "queueId": str(queue.queue_id), "timestamp": str(times[queue])}
                    for queue in queues
                ],
            )
            offsets |= {queue: int(answer.ext["offset"]) for queue, answer in zip(queues, answers, strict=True)}
        return offsets

    def pin(self, group: str, name: str, position: int, lease_ms: int) -> None:
        """Keep a group's log from `position` on until `lease_ms` after the last read that names the pin."""
        self.ask(group, PIN_LOG, [{"name": name, "position": str(position), "leaseMillis": str(lease_ms)}])

    def unpin(self, group: str, name: str) -> None:
        """Release a group's pin. A missing pin is no error."""
        self.ask(group, UNPIN_LOG, [{"name": name}])

    def ask(
        self,
        group: str,
        code: int,
        all_ext: list[dict[str, str]],
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        allowed: Container[int] = (),
    ) -> list[Response]:
        """Return the leader's answers to requests. Any node takes and forwards them. They may be sent more than once.

        Answers with a code in `allowed` are returned as well as successes. Raises `RefusedError` if the requests are
        wrong, and `DeniedError` if the account may not make them. Raises `SourceError` without an answer within
        `timeout_s`, by default `readTimeout`.
        """
        seconds = self._options.read_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + seconds
        failures: dict[str, str] = {}
        while True:
            denied: dict[str, str] = {}
            for address in self._list_addresses(group, failures):
                try:
                    if group not in self._connections:
                        self._connections[group] = Connection(address, _ASK_TIMEOUT_S)
                    answers = self._connections[group].requests(code, all_ext, body)
                    return [answer if answer.code in allowed else answer.check() for answer in answers]
                except (WireError, RefusedError) as error:
                    if isinstance(error, RefusedError) and error.code in _PERMANENT_REFUSALS:
                        raise
                    failures[address] = str(error)
                    if isinstance(error, RefusedError) and error.code == NO_PERMISSION:
                        denied[address] = error.remark
                    if group in self._connections:
                        self._connections.pop(group).close()
            if denied:
                self._raise_if_denied(group, denied)
            if time.monotonic() >= deadline:
                reasons = "; ".join(failures.values()) or "no node is registered"
                raise SourceError(f"no node of {group} answered within {seconds:g} s ({reasons})")
            time.sleep(0.1)

    def _raise_if_denied(self, group: str, denied: Mapping[str, str]) -> None:
        """Raise `DeniedError` if the leader is among the nodes that refused because a right is missing.

        Another node may lack the keys to decide at all.
        """
        try:
            leader = self._name_servers.groups().get(group, {}).get(LEADER_ID)
        except NoNameServerError:
            return
        if leader is not None and leader in denied:
            raise DeniedError(denied[leader])
        _logger.warning("event=node_without_rights group=%s refusals=%r", group, dict(denied))

    def _list_addresses(self, group: str, failures: dict[str, str]) -> list[str]:
        """Return the addresses to ask: the connected node, else all nodes that name servers list, the leader last.

        Unreachable name servers are noted in `failures`.
        """
        if group in self._connections:
            return [self._connections[group].address]
        try:
            nodes = self._name_servers.groups().get(group, {})
        except NoNameServerError as error:
            failures["name servers"] = str(error)
            return []
        return [address for _, address in sorted(nodes.items(), reverse=True)]

    def reader(self, group: str) -> ReplicaReader:
        """Return the reader of a group. It reads from replicas with a role that the options allow."""
        if group not in self._readers:
            self._readers[group] = ReplicaReader(
                self._name_servers, group, self._options.read_from, self._options.read_timeout_s
            )
        return self._readers[group]


def _list_assigned(assigned: Mapping[str, Any], group: str) -> Iterator[Queue]:
    """Yield the queues that `assign` names. Numbers without a broker group are queues of `group`."""
    for topic, value in assigned.items():
        for name, numbers in value.items() if isinstance(value, dict) else ((group, value),):
            yield from (Queue(topic, name, number) for number in numbers)


def groups_by_ordinal(namesrv: tuple[str, ...], timeout_s: float) -> dict[int, str]:
    """Return all broker groups by their ordinals. Raises `SourceError` if one does not tell it within `timeout_s`."""
    groups: dict[int, str] = {}
    with NameServers(namesrv) as name_servers:
        for group in name_servers.groups():
            with ReplicaReader(name_servers, group, "any", timeout_s) as replicas:
                ext = {"roles": "follower,learner,leader", "topics": AUTO_CREATE_TOPIC, "sliceBytes": str(1 << 40)}
                groups[parse_plan(replicas.request(READ_PLAN, ext).body).ordinal] = group
    return groups
