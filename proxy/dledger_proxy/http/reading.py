"""Reader of requests: bodies within limits of size, time and memory, then JSON and queries by their structs.

All mistakes of a caller become `ProblemError`, whose text says what was expected.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from dledger_remoting.errors import InvalidParameter
from dledger_remoting.topics import validate_topic

from .config import HttpKeys
from .problems import Kind, ProblemError

JSON: Final = "application/json"
MAX_IDEMPOTENCY_KEY_CHARS: Final = 128

_IDEMPOTENCY_KEY = re.compile(r"[!-~]+")
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_PIECE_BYTES: Final = 64 << 10

ParametersT = TypeVar("ParametersT", bound=msgspec.Struct)


async def read_body(request: web.Request, limits: HttpKeys, take: Callable[[int], None]) -> bytes:
    """Return the body of a request. Raises `ProblemError` if it is too large, too slow or not JSON by its type.

    `take` takes memory for each piece when it has come, so that a promised length takes none. It raises `ProblemError`.
    """
    if request.content_type != JSON:
        given = request.headers.get("Content-Type", "none")
        raise ProblemError(
            Kind.MEDIA, f"Content-Type is {given[:100]!r}: send JSON, with the header 'Content-Type: {JSON}'"
        )
    if "Content-Encoding" in request.headers:
        raise ProblemError(Kind.MEDIA, "the body has a Content-Encoding: send it as it is, without compression")
    if (request.content_length or 0) > limits.http_max_body_bytes:
        raise _too_large(limits)
    pieces = bytearray()
    try:
        async with asyncio.timeout(limits.http_body_timeout_s):
            while piece := await request.content.read(_PIECE_BYTES):
                take(len(piece))
                pieces += piece
                if len(pieces) > limits.http_max_body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        text = f"the body did not come within {limits.http_body_timeout_s:g} s: send it faster, or in several requests"
        raise ProblemError(Kind.SLOW, text) from None
    except web.RequestPayloadError as error:
        raise ProblemError(Kind.INVALID, f"the body cannot be read: {error}") from error
    return bytes(pieces)


def _too_large(limits: HttpKeys) -> ProblemError:
    return ProblemError(
        Kind.TOO_LARGE,
        f"a body has at most {limits.http_max_body_bytes} bytes: send the messages in several requests",
    )


def decoded(body: bytes, body_type: Any) -> Any:  # noqa: ANN401 -- a type alias of several structs has no type itself
    """Return the body as an object of `body_type`. Raises `ProblemError` that names the place of the mistake."""
    try:
        body.decode()  # msgspec keeps raw JSON as it is, also bytes that are no UTF-8
        return msgspec.json.decode(body, type=body_type)
    except msgspec.MsgspecError as error:
        raise ProblemError(Kind.INVALID, f"the body cannot be used: {error}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(Kind.INVALID, f"the body is no UTF-8 at byte {error.start}") from error
    except RecursionError:
        raise ProblemError(Kind.INVALID, "the body is nested too deeply") from None


def parameters_of(request: web.Request, parameters_type: type[ParametersT]) -> ParametersT:
    """Return the query of a request. Raises `ProblemError`, also for a name that is there twice."""
    query = request.query
    twice = next((name for name in query if len(query.getall(name)) > 1), None)
    if twice is not None:
        raise ProblemError(Kind.INVALID, f"the query has {twice[:100]!r} more than once")
    try:
        return msgspec.convert(dict(query), parameters_type, strict=False)
    except msgspec.MsgspecError as error:
        raise ProblemError(Kind.INVALID, f"the query cannot be used: {error}") from error


def topic_of(request: web.Request) -> str:
    """Return the topic in a request's path. Raises `ProblemError` for a name that no topic can have."""
    topic = request.match_info["topic"]
    try:
        validate_topic(topic)
    except InvalidParameter as error:
        raise ProblemError(Kind.INVALID, error.remark) from error
    return topic


def idempotency_key_of(request: web.Request) -> str | None:
    """Return the idempotency key of a request, None without one. It may be in quotes, as the draft RFC has it."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if len(key) > 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(key) > MAX_IDEMPOTENCY_KEY_CHARS or not _IDEMPOTENCY_KEY.fullmatch(key):
        raise ProblemError(
            Kind.INVALID,
            f"Idempotency-Key {key[:64]!r}: expected 1 to {MAX_IDEMPOTENCY_KEY_CHARS} visible ASCII characters, such "
            "as a UUID",
        )
    return key


def trace_parent_of(request: web.Request) -> str | None:
    """Return the trace context of a request (W3C), None without a valid one: a wrong one is to be ignored."""
    header = request.headers.get("traceparent", "")
    return header if len(header) <= 512 and _TRACE_PARENT.fullmatch(header) else None
