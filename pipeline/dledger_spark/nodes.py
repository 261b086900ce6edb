"""Servers to read from: name servers, the nodes of a broker group, and one replica after another.

Only what a name server tells is known here; whether a node still has the role that the reader wants is for that node to
say, and it refuses if it has not.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from .errors import ClosingServerError, NoNameServerError, NoReplicaError, RefusedError, WireError, WrongServerError
from .throttle import Throttle
from .wire import FIRST_ANSWER_S, Connection, Response

GET_ROUTE: Final = 105
GET_CLUSTER: Final = 106
GET_TOPICS: Final = 206
LEADER_ID: Final = 0
NAME_SERVER_TIMEOUT_S: Final = 5.0
"""How long one name server may be silent, and for how long all of them are asked again if none can be reached."""
ATTEMPT_TIMEOUT_S: Final = 10.0
"""How long one replica may be silent before another one is asked; a third of the read's timeout if that is less."""

_NO_SUCH_TOPIC: Final = 17
_NOT_SUPPORTED: Final = 3
"""Of what is asked here every name server understands all, and no broker anything."""
_INCLUDE_ABSENT: Final = {"includeAbsent": "true"}
"""Name servers of the project's own then tell of broker groups too of which no node is registered now."""
_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0


class NameServers:
    """Asks the name servers of a cluster, one after the other until one answers.

    Broker groups that are away belong to the answers, so that no message is left out unnoticed.

    Raises `NoNameServerError` if none does, `RefusedError` for another answer than success. Wrong addresses, where
    something else answers or, unless they are `known` to be right, nothing does, are not asked again.
    """

    def __init__(self, addresses: tuple[str, ...], *, known: bool = False) -> None:
        self._addresses = addresses
        self._known = set(addresses) if known else set()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one; the next question opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def topics(self) -> list[str]:
        """The names of all topics, those of the service itself included, sorted."""
        return sorted(self._document(GET_TOPICS, _INCLUDE_ABSENT)["topicList"])

    def queues(self, topic: str) -> dict[str, int]:
        """How many readable queues a topic has on each broker group; nothing if there is no such topic."""
        response = self._ask(GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true", **_INCLUDE_ABSENT})
        if response.code == _NO_SUCH_TOPIC:
            return {}
        readable = 4
        return {
            str(entry["brokerName"]): int(entry["readQueueNums"])
            for entry in json.loads(response.check().body)["queueDatas"]
            if int(entry["perm"]) & readable
        }

    def groups(self) -> dict[str, dict[int, str]]:
        """The addresses of every broker group's nodes by their present id; the leader has the id 0.

        None while no node of a group is registered.
        """
        table = self._document(GET_CLUSTER, _INCLUDE_ABSENT)["brokerAddrTable"]
        return {
            str(name): {int(number): str(address) for number, address in data["brokerAddrs"].items()}
            for name, data in sorted(table.items())
        }

    def own_topics(self) -> set[str]:
        """The topics that brokers have for themselves, named after groups and clusters."""
        table = self._document(GET_CLUSTER, _INCLUDE_ABSENT)
        clusters = list(table["clusterAddrTable"])
        return {*table["brokerAddrTable"], *clusters, *(f"{name}_REPLY_TOPIC" for name in clusters)}

    def _document(self, code: int, ext: Mapping[str, str]) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._ask(code, ext).check().body)
        return document

    def _ask(self, code: int, ext: Mapping[str, str]) -> Response:
        """The first answer. A name server that starts anew is waited for: a stream need not end with it."""
        began = time.monotonic()
        give_up = began + NAME_SERVER_TIMEOUT_S
        while True:
            failures: dict[str, None] = {}
            wrong = 0
            for address in self._addresses:
                try:
                    if self._connection is None:
                        is_known = address in self._known
                        self._connection = Connection(
                            address, NAME_SERVER_TIMEOUT_S, is_known=is_known, to_broker=False
                        )
                    response = self._connection.request(code, ext)
                    if response.code == _NOT_SUPPORTED:
                        raise WrongServerError(f"{self._connection.address}: a broker answered there, no name server")
                    self._known.add(self._connection.address)
                    return response
                except WireError as error:
                    patient = isinstance(error, ClosingServerError) and time.monotonic() - began < FIRST_ANSWER_S
                    wrong += isinstance(error, WrongServerError) and not patient
                    self.close()
                    failures[str(error)] = None
            if wrong == len(self._addresses) or time.monotonic() >= give_up:
                raise NoNameServerError(f"no name server answered: {'; '.join(failures)}")
            time.sleep(_PAUSE_S)


class ReplicaReader:
    """Sends requests to one replica of a broker group, and to another one when that fails or refuses.

    At most one request is sent ahead: `submit` sends it, `result` waits for its answer and sends it again elsewhere if
    need be. Raises `NoReplicaError` if nobody has served it for `timeout_s` seconds; a replica whose answer comes at
    less than `min_bytes_per_second` is given up too. `preference` spreads tasks over replicas that are equally good,
    and `throttle` says how fast they read.
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
        self._waiting: list[str] = []
        self._refusals: dict[str, str] = {}
        self._random = random.Random(preference)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and forget what was submitted."""
        self._drop()
        self._request = None

    def submit(self, code: int, ext: Mapping[str, str]) -> None:
        """Send a request ahead if there is a connection; `result` sends it otherwise."""
        self._request = (code, ext)
        if self._connection is not None:
            try:
                self._opaque = self._connection.send(code, ext)
            except WireError as error:
                self._fail(str(error))

    def result(self, refusal: Callable[[Response], str | None]) -> Response:
        """The answer to what was submitted.

        `refusal` says why an answer should be asked for elsewhere, None to take it.
        """
        assert self._request is not None, "nothing was submitted"
        deadline = time.monotonic() + self._timeout_s
        pause_s = _PAUSE_S
        while True:
            try:
                response = self._attempt()
            except WireError as error:
                self._fail(str(error))
            else:
                reason = refusal(response)
                if reason is None:
                    self._request = None
                    self._refusals.clear()
                    self._throttle.spend(len(response.body))
                    return response
                self._fail(reason)
            if time.monotonic() >= deadline:
                raise NoReplicaError(self._group, self._read_from, self._timeout_s, self._refusals.values())
            if not self._waiting:
                time.sleep(pause_s * (0.5 + self._random.random()))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def request(
        self, code: int, ext: Mapping[str, str], refusal: Callable[[Response], str | None] | None = None
    ) -> Response:
        """Submit and wait; without `refusal` every answer but success is asked for elsewhere."""
        self.submit(code, ext)
        return self.result(refusal or _unless_success)

    def _attempt(self) -> Response:
        assert self._request is not None
        if self._connection is None:
            if not self._waiting:
                try:
                    self._waiting = self._candidates()
                except NoNameServerError as error:  # they may be away for as long as replicas
                    raise WireError(str(error)) from error
            if not self._waiting:
                raise WireError(f"the name server knows no {self._read_from} of {self._group}")
            timeout_s = min(ATTEMPT_TIMEOUT_S, self._timeout_s / 3)
            self._connection = Connection(self._waiting.pop(0), timeout_s, self._min_bytes_per_second)
            self._opaque = None
        if self._opaque is None:
            self._opaque = self._connection.send(*self._request)
        opaque, self._opaque = self._opaque, None
        return self._connection.receive(opaque)

    def _candidates(self) -> list[str]:
        """The nodes that may have the wanted role, those of other ids than the leader's first."""
        nodes = self._name_servers.groups().get(self._group, {})
        followers = [address for number, address in sorted(nodes.items()) if number != LEADER_ID]
        leader = [nodes[LEADER_ID]] if LEADER_ID in nodes else []
        if followers:
            turn = self._preference % len(followers)
            followers = followers[turn:] + followers[:turn]
        if self._read_from == "leader":
            return leader
        return followers + leader if self._read_from == "any" else followers

    def _fail(self, reason: str) -> None:
        place = self._connection.address if self._connection is not None else ""
        self._refusals[place] = reason if not place or reason.startswith(place) else f"{place}: {reason}"
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._opaque = None


def _unless_success(response: Response) -> str | None:
    return None if response.code == 0 else str(RefusedError(response.code, response.remark))
