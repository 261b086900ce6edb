"""Callers of requests, as the headers of a request name them, and the names of topics and groups that they use.

| header | holds |
|---|---|
| `x-mq-client-id` | the client's own id; a request without one is answered 40017 |
| `x-mq-language`, `x-mq-client-version` | shown to operators |
| `x-mq-date-time`, `authorization` | the signature; brokers judge it |
| `traceparent` | repeated in log lines |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from grpclib.server import Stream

from dledger_client.errors import InvalidArgumentError
from dledger_client.namespaces import Namespace
from dledger_remoting.codes import LanguageCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.hosts import HostAddress
from dledger_remoting.speech import SIGNED_HEADER, Speech, parse_authorization
from dledger_remoting.topics import is_system_group, is_system_topic, validate_group, validate_topic

from .answers import Refusal
from .definition import messaging_pb2 as pb

MAX_CLIENT_ID_CHARS: Final = 255
"""Maximum length of a client's id in characters."""

_LANGUAGES: Final = {
    "JAVA": LanguageCode.JAVA,
    "CPP": LanguageCode.CPP,
    "DOTNET": LanguageCode.DOTNET,
    "DOT_NET": LanguageCode.DOTNET,
    "PYTHON": LanguageCode.PYTHON,
    "RUBY": LanguageCode.RUBY,
    "HTTP": LanguageCode.NODE_JS,
    "NODE_JS": LanguageCode.NODE_JS,
    "GO": LanguageCode.GO,
    "GOLANG": LanguageCode.GO,
    "PHP": LanguageCode.PHP,
    "RUST": LanguageCode.RUST,
}
"""Languages by the words of clients. Node's client calls itself HTTP."""
_UNSIGNED: Final = re.compile(r"Credential=\s*[/,]")
"""Header of a client whose credentials are empty texts. Python's client signs for these, too."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Caller(msgspec.Struct, frozen=True):
    """Client that has sent a request.

    `deadline` is the request's own, by the event loop's clock. `trace` is the W3C context of the caller's trace.
    """

    client_id: str
    speech: Speech
    language: LanguageCode = LanguageCode.OTHER
    version: str = ""
    trace: str = ""
    deadline: float | None = None

    @property
    def address(self) -> HostAddress:
        """The client's address."""
        return self.speech.address

    @property
    def ext(self) -> Mapping[str, str]:
        """Ext fields of requests that are sent for this client. Brokers judge its signature and rights by them."""
        return self.speech.ext


def caller_of(stream: Stream[Any, Any], now: float) -> Caller:
    """Return the caller of a request. Raises `Refusal` for one without a client's id."""
    headers: dict[str, str] = {}
    for name, value in (stream.metadata or {}).items():
        if isinstance(value, str):
            headers.setdefault(name, value)
    client_id = headers.get("x-mq-client-id", "").strip()
    if not client_id:
        raise Refusal(pb.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing: it names the client object")
    if len(client_id) > MAX_CLIENT_ID_CHARS or not client_id.isprintable():
        raise Refusal(
            pb.CLIENT_ID_REQUIRED, f"the header x-mq-client-id has at most {MAX_CLIENT_ID_CHARS} printable characters"
        )
    trace = headers.get("traceparent", "")
    return Caller(
        client_id,
        _speech(headers, stream.peer.addr()),
        _LANGUAGES.get(headers.get("x-mq-language", "").upper(), LanguageCode.OTHER),
        headers.get("x-mq-client-version", "")[:32],
        trace if _TRACE.fullmatch(trace) else "",
        None if stream.deadline is None else now + stream.deadline.time_remaining(),
    )


def _speech(headers: Mapping[str, str], peer: tuple[str, int] | None) -> Speech:
    """Return what a request's headers say about its client. Raises `Refusal` for a header that cannot be read."""
    address = HostAddress("0.0.0.0", 1) if peer is None else HostAddress(str(peer[0]), int(peer[1]))  # peer is gone
    if _UNSIGNED.search(headers.get("authorization", "Credential=,")):
        return Speech(address)
    try:
        account, signature = parse_authorization(headers["authorization"])
    except InvalidParameter as error:
        raise Refusal(pb.UNAUTHORIZED, error.remark) from error
    return Speech(address, account, headers.get(SIGNED_HEADER, ""), signature)


def topic_name(resource: pb.Resource) -> str:
    """Return a topic as brokers know it. Raises `Refusal` for an invalid name and for a topic of the service."""
    try:
        name = _namespace(resource).full(resource.name)
        validate_topic(name)
    except (InvalidParameter, InvalidArgumentError) as error:
        raise Refusal(pb.ILLEGAL_TOPIC, str(error)) from error
    if is_system_topic(name):
        raise Refusal(pb.ILLEGAL_TOPIC, f"topic {name} belongs to the service: use one of your own")
    return name


def group_name(resource: pb.Resource) -> str:
    """Return a consumer group as brokers know it. Raises `Refusal` as `topic_name` does."""
    try:
        name = _namespace(resource).full(resource.name)
        validate_group(name)
    except (InvalidParameter, InvalidArgumentError) as error:
        raise Refusal(pb.ILLEGAL_CONSUMER_GROUP, str(error)) from error
    if is_system_group(name):
        raise Refusal(pb.ILLEGAL_CONSUMER_GROUP, f"group {name} belongs to the service: use one of your own")
    return name


def _namespace(resource: pb.Resource) -> Namespace:
    return Namespace.named(resource.resource_namespace or None)
