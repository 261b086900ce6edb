"""JSON bodies: a tolerant reader, a compact writer, and the small bodies that have no module of their own."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from .errors import BodyError
from .fastjson import to_standard_json

BodyT = TypeVar("BodyT")

_encoder: Final = msgspec.json.Encoder()


class TopicList(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A list of topic names: answer to 206, 224, 304, 305, 311-313, 343."""

    topic_list: list[str]
    broker_addr: str | None = None


class KVTable(msgspec.Struct, frozen=True):
    """A map from text to text: answer to 219 and 28, and the ordered topics in the answer to 103."""

    table: dict[str, str] = {}


class ConsumerList(msgspec.Struct, frozen=True, rename="camel"):
    """The client ids of a consumer group: answer to 38."""

    consumer_id_list: list[str]


def encode_body(body: msgspec.Struct) -> bytes:
    """Encode a body as compact JSON. All its keys must be texts; `fastjson.encode_fastjson` writes bodies with other
    keys.
    """
    return _encoder.encode(body)


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_body(body_type: type[BodyT], body: bytes, name: str | None = None) -> BodyT:
    """Decode a JSON body; numbers and booleans may be written as texts. Raises `BodyError` with `name` in its text."""
    what = f"{name or body_type.__name__} body"
    try:
        return msgspec.json.decode(body, type=body_type, strict=False)
    except msgspec.ValidationError as error:
        raise BodyError(f"{what}: {error}") from error
    except _UNREADABLE as error:
        raise BodyError(f"{what} is no JSON: {error}") from error


def decode_fastjson_body(body_type: type[BodyT], body: bytes, name: str | None = None) -> BodyT:
    """Decode a body that RocketMQ's Java side may have written: JSON or fastjson's dialect.

    Decoding 1 MiB of the dialect takes seconds. A broker therefore reads what clients send with `decode_body`.
    """
    try:
        return msgspec.json.decode(body, type=body_type, strict=False)
    except msgspec.ValidationError as error:
        raise BodyError(f"{name or body_type.__name__} body: {error}") from error
    except _UNREADABLE:
        return decode_body(body_type, to_standard_json(body), name)
