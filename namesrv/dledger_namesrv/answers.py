"""Answers of a name server, limits on the names in requests, and the reasons for requests that it does not serve.

Without the limits any client could register names of up to 16 MiB, the maximum size of a header. `max_nodes` and
`max_routes` only bound the number of names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from typing import Final

from dledger_remoting.bodies import TopicList, encode_body
from dledger_remoting.codes import ResponseCode, request_code_name
from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.refusals import INSTEAD_OF_CONTROLLER, with_instead
from dledger_remoting.registration import Steps
from dledger_remoting.topics import MAX_DERIVED_TOPIC_CHARS, TopicConfig


class Behind(Coroutine[None, None, RemotingCommand]):
    """Coroutine for an answer that awaits another coroutine, `work`. If it is closed before it begins, so is `work`."""

    def __init__(
        self,
        work: Coroutine[None, None, RemotingCommand],
        go_on: Callable[[Coroutine[None, None, RemotingCommand]], Coroutine[None, None, RemotingCommand]],
    ) -> None:
        self._work = work
        self._combined = go_on(work)

    def __await__(self) -> Generator[None, None, RemotingCommand]:
        """Await the answer."""
        return self._combined.__await__()

    def send(self, value: None) -> None:
        """Continue, as `Coroutine.send` does."""
        return self._combined.send(value)

    def throw(self, *error: BaseException) -> None:  # type: ignore[override]  # its forms are handed on
        """Raise an error in the work, as `Coroutine.throw` does."""
        self._combined.throw(*error)  # type: ignore[call-overload]

    def close(self) -> None:
        """Close both coroutines, whether they have begun or not."""
        self._combined.close()
        self._work.close()


def success(request: RemotingCommand, body: bytes = b"", ext: dict[str, str] | None = None) -> RemotingCommand:
    """Return an answer with code 0."""
    return make_response(request, ResponseCode.SUCCESS, ext=ext, body=body)


def listed(request: RemotingCommand, topics: Steps[list[str]]) -> Steps[RemotingCommand]:
    """Run the steps that make a list of topics, and return the answer with it."""
    names = yield from topics
    return success(request, encode_body(TopicList(names)))


MAX_NAME_CHARS: Final = MAX_DERIVED_TOPIC_CHARS
"""Maximum length in characters of the name of a topic, broker group, cluster or node.

Brokers have topics with these names, or with names of the same form.
"""
MAX_ADDRESS_CHARS: Final = 259
"""Maximum length of an address in characters: 253 of the longest host name, a colon, and five digits."""
SHOWN_CHARS: Final = 32


def fault_of_header(header: RegisterBrokerHeader) -> str:
    """Describe the first name or address of a node that is too long, with the limit. Empty if none is."""
    names = {"broker name": header.broker_name, "cluster name": header.cluster_name, "node id": header.node_id}
    addresses = {
        "broker address": header.broker_addr,
        "HA address": header.ha_server_addr,
        "alias address": header.alias_addr,
    }
    faults = (
        *(_fault(what, name, MAX_NAME_CHARS) for what, name in names.items()),
        *(_fault(what, address, MAX_ADDRESS_CHARS) for what, address in addresses.items()),
    )
    return next(filter(None, faults), "")


def fault_of_topics(topics: dict[str, TopicConfig]) -> str:
    """Describe the first topic name that is too long, with the limit. Empty if none is."""
    return next(filter(None, (_fault("topic name", name, MAX_NAME_CHARS) for name in _names(topics))), "")


def shown(text: str) -> str:
    """Return a name for a line of the log or an answer. It is shortened if it is longer than an address may be."""
    return text if len(text) <= MAX_ADDRESS_CHARS else f"{text[:SHOWN_CHARS]}..."


def _names(topics: dict[str, TopicConfig]) -> Iterator[str]:
    """Yield the names of the topics. Each topic has its name twice: as a key, and in its configuration."""
    yield from topics
    yield from (config.topic_name for config in topics.values())


def _fault(what: str, text: str | None, limit: int) -> str:
    if text is None or len(text) <= limit:
        return ""
    return f"the {what} {text[:SHOWN_CHARS]}... has {len(text)} characters, the limit is {limit}"


INSTEAD: Final[Mapping[int, str]] = {
    217: "a topic has a route once a broker registers it, make it at a broker with 17 (`dledger topic create`)",
    **INSTEAD_OF_CONTROLLER,
}


def refusal_of(code: int) -> str:
    """Return the text of an answer 3."""
    refusal = f"request type {code} ({request_code_name(code)}) not supported by a name server"
    return with_instead(refusal, code, INSTEAD)
