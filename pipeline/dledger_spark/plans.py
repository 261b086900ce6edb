"""Plans: what a cluster holds at one moment, asked of followers, never behind what was acknowledged before.

`READ_COMMIT` gives the position below which everything acknowledged lies (the leader confirms it; no message is read
there), `READ_PLAN` what a follower that has applied so much can give. Formats: `docs/wire.md`, "Reading the log".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .errors import NoNameServerError, OptionError, RefusedError, SourceError, WireError
from .nodes import NameServers, ReplicaReader
from .offsets import QUEUES_PER_GROUP, Offsets, Queue
from .options import ReadOptions
from .topics import is_left_out
from .wire import Connection, Response

SEARCH_OFFSET_BY_TIMESTAMP: Final = 29
READ_PLAN: Final = 20010
READ_COMMIT: Final = 20012
PIN_LOG: Final = 20013
UNPIN_LOG: Final = 20014
PLAN_VERSION: Final = 1
AUTO_CREATE_TOPIC: Final = "TBW102"

_TOPIC_NOT_EXIST: Final = 17
GROUP_NOT_EXIST: Final = 26
_INVALID_PARAMETER: Final = 29
TRIMMED: Final = 20112
_FINAL: Final = frozenset({_TOPIC_NOT_EXIST, GROUP_NOT_EXIST, _INVALID_PARAMETER, TRIMMED})
"""Refusals that asking again does not change."""
_ASK_TIMEOUT_S: Final = 10.0


class Cut(NamedTuple):
    """Where a slice begins: position and index of an entry, the chain crc before it, the store times in the slice."""

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
    """One broker group, as of one applied position of one of its nodes.

    `created` says per topic from which position on records belong to its present incarnation.
    """

    group: str
    ordinal: int
    first_position: int
    commit: int
    cuts: list[Cut]
    created: dict[str, int]
    bounds: dict[Queue, QueueBounds]

    def partition(self, queue: Queue) -> int:
        """The number of a queue that is unique within its topic."""
        return self.ordinal * QUEUES_PER_GROUP + queue.queue_id


def parse_plan(body: bytes) -> GroupPlan:
    """The plan in an answer's body. Raises `SourceError` for another version of its layout."""
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


class Cluster:
    """Asks name servers and brokers on behalf of a planner; one connection per group is kept."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._name_servers = NameServers(options.namesrv)
        self._readers: dict[str, ReplicaReader] = {}
        self._asking: dict[str, Connection] = {}

    def close(self) -> None:
        """Close all connections."""
        self._name_servers.close()
        for reader in self._readers.values():
            reader.close()
        for connection in self._asking.values():
            connection.close()
        self._readers.clear()
        self._asking.clear()

    def groups(self) -> list[str]:
        """All broker groups that name servers know."""
        return list(self._name_servers.groups())

    def queues(self, *, all_exist: bool = True) -> list[Queue]:
        """The queues that the subscription means, sorted; those that exist, unless `all_exist` is to be.

        Raises `OptionError` if it names what does not exist, or what is ambiguous.
        """
        subscription = self._options.subscription
        if subscription.assigned is not None:
            return sorted(self._assigned(subscription.assigned, all_exist=all_exist))
        topics: Iterable[str] = subscription.topics
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            names = self._name_servers.topics()
            own = self._name_servers.own_topics()
            topics = [name for name in names if pattern.fullmatch(name) and name not in own and not is_left_out(name)]
        queues: list[Queue] = []
        for topic in topics:
            found = self._of_topic(topic)
            if not found and all_exist and subscription.pattern is None:
                raise OptionError("subscribe", ",".join(subscription.topics), f"topic {topic!r} does not exist")
            queues += found
        return sorted(queues)

    def _of_topic(self, topic: str) -> list[Queue]:
        groups = self._name_servers.queues(topic)
        return [Queue(topic, group, queue_id) for group, count in groups.items() for queue_id in range(count)]

    def _assigned(self, assigned: Mapping[str, Any], *, all_exist: bool) -> Iterable[Queue]:
        text = json.dumps(assigned)
        for topic, value in assigned.items():
            existing = set(self._of_topic(topic))
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
                    if queue in existing:
                        yield queue
                    elif all_exist:
                        raise OptionError("assign", text, f"there is no queue {queue}")

    def commit(self, group: str) -> int:
        """The position below which everything is that was acknowledged before."""
        return int(self.ask(group, READ_COMMIT, [{}])[0].ext["commit"])

    def plan(
        self, group: str, topics: Iterable[str], *, slice_bytes: int | None = None, start: int = 0, times: bool = False
    ) -> GroupPlan:
        """What a replica of a group can give of `topics`; with the cuts of slices from byte `start` on only if
        `slice_bytes` is given.
        """
        commit = self.commit(group)
        ext = {
            "roles": self._options.roles,
            "topics": ",".join(sorted(set(topics))),
            "minCommit": str(commit),
            "times": "true" if times else "false",
        }
        if slice_bytes is None:
            ext["startPosition"] = str(commit)
        else:
            ext |= {"sliceBytes": str(slice_bytes), "startPosition": str(start)}
        return parse_plan(self.reader(group).request(READ_PLAN, ext).body)

    def offsets_at(self, times: Offsets) -> Offsets:
        """The offset of the first message stored at or after a time, per queue; the queue's end if there is none."""
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
        """Give a group's pin up; none of that name is no error."""
        self.ask(group, UNPIN_LOG, [{"name": name}])

    def ask(self, group: str, code: int, all_ext: list[dict[str, str]], body: bytes = b"") -> list[Response]:
        """The leader's answers, through whichever node answers: it passes the questions on. All may be repeated.

        Raises `RefusedError` if the questions are wrong, `SourceError` if nobody answers within `readTimeout`.
        """
        deadline = time.monotonic() + self._options.read_timeout_s
        failures: dict[str, str] = {}
        while True:
            for address in self._addresses(group, failures):
                try:
                    if group not in self._asking:
                        self._asking[group] = Connection(address, _ASK_TIMEOUT_S)
                    return [answer.check() for answer in self._asking[group].requests(code, all_ext, body)]
                except (WireError, RefusedError) as error:
                    if isinstance(error, RefusedError) and error.code in _FINAL:
                        raise
                    failures[address] = str(error)
                    if group in self._asking:
                        self._asking.pop(group).close()
            if time.monotonic() >= deadline:
                told = "; ".join(failures.values()) or "no node is registered"
                raise SourceError(f"no node of {group} answered within {self._options.read_timeout_s:g} s ({told})")
            time.sleep(0.1)

    def _addresses(self, group: str, failures: dict[str, str]) -> list[str]:
        """Whom to ask: who is connected already, else all nodes that name servers list, the leader last.

        That name servers cannot be reached is one of the `failures`.
        """
        if group in self._asking:
            return [self._asking[group].address]
        try:
            nodes = self._name_servers.groups().get(group, {})
        except NoNameServerError as error:
            failures["name servers"] = str(error)
            return []
        return [address for _, address in sorted(nodes.items(), reverse=True)]

    def reader(self, group: str) -> ReplicaReader:
        """What reads from the replicas of a group that the options allow."""
        if group not in self._readers:
            self._readers[group] = ReplicaReader(
                self._name_servers, group, self._options.read_from, self._options.read_timeout_s
            )
        return self._readers[group]


def groups_by_ordinal(namesrv: tuple[str, ...], timeout_s: float) -> dict[int, str]:
    """All broker groups by their ordinals. Raises `SourceError` if one does not say within `timeout_s`."""
    found: dict[int, str] = {}
    with NameServers(namesrv) as name_servers:
        for group in name_servers.groups():
            with ReplicaReader(name_servers, group, "any", timeout_s) as replicas:
                ext = {"roles": "follower,learner,leader", "topics": AUTO_CREATE_TOPIC, "sliceBytes": str(1 << 40)}
                found[parse_plan(replicas.request(READ_PLAN, ext).body).ordinal] = group
    return found
