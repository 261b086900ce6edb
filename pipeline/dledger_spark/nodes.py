"""Servers to read from: name servers, and the replicas of a broker group.

This module knows only the answers of name servers. A node itself checks whether it still has the role that the reader
wants, and refuses otherwise.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from .errors import (
    NO_PERMISSION,
    ClosingServerError,
    DeniedError,
    NoNameServerError,
    NoReplicaError,
    RefusedError,
    WireError,
    WrongServerError,
)
from .throttle import Throttle
from .wire import FIRST_ANSWER_S, Connection, Response

_logger = logging.getLogger(__name__)

GET_ROUTE: Final = 105
GET_CLUSTER: Final = 106
GET_TOPICS: Final = 206
LEADER_ID: Final = 0
NAME_SERVER_TIMEOUT_S: Final = 5.0
"""Time limit in seconds for one name server's answer, and for attempts at all of them if no server can be reached."""
ATTEMPT_TIMEOUT_S: Final = 10.0
"""Maximum time limit in seconds for one replica's answer, before another one is asked.

The time limit is a third of the read's timeout if that is less.
"""

_NO_SUCH_TOPIC: Final = 17
_NOT_SUPPORTED: Final = 3
"""Answer code of a broker to these requests. Name servers understand all of them."""
_INCLUDE_ABSENT: Final = {"includeAbsent": "true"}
"""Field of a request. With it, this project's name servers also list broker groups without a registered node."""
_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0


class NameServers:
    """Asks the name servers of a cluster, one after another until one answers.

    Answers include broker groups without a registered node, so that no message is left out unnoticed.

    Raises `NoNameServerError` if none answers for `NAME_SERVER_TIMEOUT_S`, or at once if all addresses are wrong. An
    address is wrong if another kind of server answers there. Unless it is `known` to be right, silence means the same.
    Raises `RefusedError` for an answer other than success.
    """

    def __init__(self, addresses: tuple[str, ...], *, known: bool = False) -> None:
        self._addresses = addresses
        self._known_addresses = set(addresses) if known else set()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one. The next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def topics(self) -> list[str]:
        """Return the names of all topics, those of the service itself included, sorted."""
        return sorted(self._request_document(GET_TOPICS, _INCLUDE_ABSENT)["topicList"])

    def queues(self, topics: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return the number of readable queues of each topic on each broker group, none for a missing topic.

        The requests for many topics are sent without waiting for each answer.
        """
        requests = [{"topic": topic, "acceptStandardJsonOnly": "true", **_INCLUDE_ABSENT} for topic in topics]
        return (
            dict(zip(topics, map(_parse_readable_queues, self._ask(GET_ROUTE, requests)), strict=True))
            if requests
            else {}
        )

    def groups(self) -> dict[str, dict[int, str]]:
        """Return the addresses of every broker group's nodes by their present id; the leader has the id 0.

        A group without a registered node has no addresses.
        """
        table = self._request_document(GET_CLUSTER, _INCLUDE_ABSENT)["brokerAddrTable"]
        return {
            str(name): {int(number): str(address) for number, address in data["brokerAddrs"].items()}
            for name, data in sorted(table.items())
        }

    def own_topics(self) -> set[str]:
        """Return the topics that brokers have for themselves, named after groups and clusters."""
        table = self._request_document(GET_CLUSTER, _INCLUDE_ABSENT)
        clusters = list(table["clusterAddrTable"])
        return {*table["brokerAddrTable"], *clusters, *(f"{name}_REPLY_TOPIC" for name in clusters)}

    def _request_document(self, code: int, ext: Mapping[str, str]) -> dict[str, Any]:
        (answer,) = self._ask(code, [ext])
        document: dict[str, Any] = json.loads(answer.check().body)
        return document

    def _ask(self, code: int, all_ext: Sequence[Mapping[str, str]]) -> list[Response]:
        """Return the answers of one name server. Wait for one that restarts, so that a stream survives the restart."""
        began = time.monotonic()
        deadline = began + NAME_SERVER_TIMEOUT_S
        while True:
            failures: dict[str, None] = {}
            wrong_servers = 0
            for address in self._addresses:
                try:
                    if self._connection is None:
                        is_known = address in self._known_addresses
                        self._connection = Connection(
                            address, NAME_SERVER_TIMEOUT_S, is_known=is_known, to_broker=False
                        )
                    responses = self._connection.requests(code, all_ext)
                    if any(response.code == _NOT_SUPPORTED for response in responses):
                        raise WrongServerError(f"{self._connection.address}: a broker answered there, no name server")
                    self._known_addresses.add(self._connection.address)
                    return responses
                except WireError as error:
                    may_be_starting = (
                        isinstance(error, ClosingServerError) and time.monotonic() - began < FIRST_ANSWER_S
                    )
                    wrong_servers += isinstance(error, WrongServerError) and not may_be_starting
                    self.close()
                    failures[str(error)] = None
            if wrong_servers == len(self._addresses) or time.monotonic() >= deadline:
                raise NoNameServerError(f"no name server answered: {'; '.join(failures)}")
            time.sleep(_PAUSE_S)


def _parse_readable_queues(route: Response) -> dict[str, int]:
    if route.code == _NO_SUCH_TOPIC:
        return {}
    readable = 4
    return {
        str(entry["brokerName"]): int(entry["readQueueNums"])
        for entry in json.loads(route.check().body)["queueDatas"]
        if int(entry["perm"]) & readable
    }


class ReplicaReader:
    """Sends requests to one replica of a broker group, and to another one when that fails or refuses.

    At most one request is sent ahead: `submit` sends it, `result` waits for its answer and sends it again elsewhere if
    need be. Raises `NoReplicaError` if no replica has served it for `timeout_s` seconds. A replica whose answer comes
    at less than `min_bytes_per_second` counts as failed. `preference` spreads tasks over replicas that are equally
    good, and `throttle` limits how fast they read.
    """

    def __init__(
        self,
        name_servers: NameServers,
        group: str,
        read_from: str,
        timeout_s: float,
        preference: int = 0,
        *,
        min_bytes_per_second: int = 0,
        throttle: Throttle | None = None,
    ) -> None:
        self._name_servers = name_servers
        self._group = group
        self._read_from = read_from
        self._timeout_s = timeout_s
        self._preference = preference
        self._min_bytes_per_second = min_bytes_per_second
        self._throttle = throttle or Throttle(None)
        self._connection: Connection | None = None
        self._request: tuple[int, Mapping[str, str]] | None = None
        self._opaque: int | None = None
        self._untried: list[str] = []
        self._refusals: dict[str, str] = {}
        self._random = random.Random(preference)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and forget the submitted request."""
        self._disconnect()
        self._request = None

    def submit(self, code: int, ext: Mapping[str, str]) -> None:
        """Send a request ahead if there is a connection; `result` sends it otherwise."""
        self._request = (code, ext)
        if self._connection is not None:
            try:
                self._opaque = self._connection.send(code, ext)
            except WireError as error:
                self._note_failure(str(error))

    def result(self, refusal: Callable[[Response], str | None]) -> Response:
        """Return the answer to the submitted request.

        `refusal` gets an answer. It returns None to accept it, or the reason why another replica must be asked.
        """
        assert self._request is not None, "nothing was submitted"
        deadline = time.monotonic() + self._timeout_s
        pause_s = _PAUSE_S
        while True:
            try:
                response = self._attempt()
            except WireError as error:
                self._note_failure(str(error))
            else:
                reason = refusal(response)
                if reason is None:
                    self._request = None
                    self._refusals.clear()
                    self._throttle.spend(len(response.body))
                    return response
                self._note_failure(reason)
                if response.code == NO_PERMISSION and not self._untried:
                    self._raise_if_denied()
            if time.monotonic() >= deadline:
                raise NoReplicaError(self._group, self._read_from, self._timeout_s, self._refusals.values())
            if not self._untried:
                time.sleep(pause_s * (0.5 + self._random.random()))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def tell(self, code: int, ext: Mapping[str, str]) -> None:
        """Send a request to the replica that answered last, and ignore its answer."""
        if self._connection is not None:
            with suppress(WireError):  # it has failed anyway
                self._connection.send(code, ext)

    def request(
        self, code: int, ext: Mapping[str, str], refusal: Callable[[Response], str | None] | None = None
    ) -> Response:
        """Submit a request and return its answer. Without `refusal`, only a success is accepted."""
        self.submit(code, ext)
        return self.result(refusal or _refusal_unless_success)

    def _raise_if_denied(self) -> None:
        """Raise `DeniedError` if the leader, too, refuses the request because a right is missing.

        A replica may decide by rights that are old, or lack the keys to decide at all.
        """
        assert self._request is not None
        try:
            leader = self._name_servers.groups().get(self._group, {}).get(LEADER_ID)
        except NoNameServerError:
            leader = None  # the next attempt asks again, until the read's time limit
        if leader is None:
            return
        code, ext = self._request
        try:
            with Connection(leader, min(ATTEMPT_TIMEOUT_S, self._timeout_s / 3)) as connection:
                # The leader refuses reads that are meant for another role. Only the code shows if a right is missing.
                answer = connection.request(code, ext)
        except WireError as error:
            self._refusals[leader] = str(error)
            return
        if answer.code == NO_PERMISSION:
            raise DeniedError(answer.remark)
        _logger.warning("event=replica_without_rights group=%s refusals=%r", self._group, list(self._refusals.values()))

    def _attempt(self) -> Response:
        assert self._request is not None
        if self._connection is None:
            if not self._untried:
                try:
                    self._untried = self._list_candidates()
                except NoNameServerError as error:  # the same wait as for replicas
                    raise WireError(str(error)) from error
            if not self._untried:
                raise WireError(f"the name server knows no {self._read_from} of {self._group}")
            timeout_s = min(ATTEMPT_TIMEOUT_S, self._timeout_s / 3)
            self._connection = Connection(self._untried.pop(0), timeout_s, self._min_bytes_per_second)
            self._opaque = None
        if self._opaque is None:
            self._opaque = self._connection.send(*self._request)
        opaque, self._opaque = self._opaque, None
        return self._connection.receive(opaque)

    def _list_candidates(self) -> list[str]:
        """Return the nodes that may have the wanted role, the leader last."""
        nodes = self._name_servers.groups().get(self._group, {})
        followers = [address for number, address in sorted(nodes.items()) if number != LEADER_ID]
        leader = [nodes[LEADER_ID]] if LEADER_ID in nodes else []
        if followers:
            rotation = self._preference % len(followers)
            followers = followers[rotation:] + followers[:rotation]
        if self._read_from == "leader":
            return leader
        return followers + leader if self._read_from == "any" else followers

    def _note_failure(self, reason: str) -> None:
        address = self._connection.address if self._connection is not None else ""
        self._refusals[address] = reason if not address or reason.startswith(address) else f"{address}: {reason}"
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._opaque = None


def _refusal_unless_success(response: Response) -> str | None:
    return None if response.code == 0 else str(RefusedError(response.code, response.remark))
