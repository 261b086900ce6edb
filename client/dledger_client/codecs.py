"""Codecs for typed values: JSON by msgspec or pydantic, text, and bytes.

    producer = Producer("127.0.0.1:9876", codec=JsonCodec(Order))
    consumer = PushConsumer("127.0.0.1:9876", "billing", "orders", codec=JsonCodec(Order))

`import dledger_client` does not load this module, and this module loads pydantic only for a `PydanticCodec`. Any object
with the parts of `dledger_client.Codec` is a codec, too.

| codec | values | content type |
|---|---|---|
| `JsonCodec(kind)` | what msgspec knows: structs, dataclasses, `TypedDict`, collections, dates | `application/json` |
| `PydanticCodec(kind)` | what pydantic knows: models, and all types of its `TypeAdapter` | `application/json` |
| `TextCodec()` | `str`, as UTF-8 | `text/plain; charset=utf-8` |
| `BytesCodec()` | `bytes` | `application/octet-stream` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from .errors import InvalidArgumentError
from .messages import Codec

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["BytesCodec", "Codec", "JsonCodec", "PydanticCodec", "TextCodec"]

ValueT = TypeVar("ValueT")
_JSON: Final = "application/json"


class JsonCodec(Generic[ValueT]):
    """JSON of values of one type, by msgspec.

    `kind` is the type: `Order`, `list[Order]`, `Created | Deleted`. A value is decoded once before it is sent. So no
    producer stores a value that consumers with the same type cannot read. Raises `InvalidArgumentError` for a type that
    msgspec does not know.
    """

    content_type = _JSON

    def __init__(self, kind: TypeForm[ValueT]) -> None:
        try:
            self._decoder: msgspec.json.Decoder[ValueT] = msgspec.json.Decoder(kind)
        except TypeError as error:
            raise InvalidArgumentError(f"kind={kind!r} is no type of JSON values: {error}") from error
        self._encoder = msgspec.json.Encoder()

    def encode(self, value: ValueT, /) -> bytes:
        """Return the JSON of a value. Raises `msgspec.MsgspecError` or `TypeError` if it is none of the type."""
        body = self._encoder.encode(value)
        self._decoder.decode(body)
        return body

    def decode(self, body: bytes, /) -> ValueT:
        """Return the value. Raises `msgspec.MsgspecError`, which names the field."""
        return self._decoder.decode(body)


class PydanticCodec(Generic[ValueT]):
    """JSON of pydantic's models and types, validated in both directions.

    Fields have their aliases in the JSON. Computed fields are left out, so that a model with `extra="forbid"` can read
    what it has written. Raises `ModuleNotFoundError`, which says what to install, without pydantic.
    """

    content_type = _JSON

    def __init__(self, kind: TypeForm[ValueT]) -> None:
        try:
            import pydantic
        except ModuleNotFoundError as error:
            from dledger_base.extras import install_command

            message = f"PydanticCodec needs pydantic: {install_command('pydantic')}"
            raise ModuleNotFoundError(message, name="pydantic") from error
        try:
            self._adapter: pydantic.TypeAdapter[ValueT] = pydantic.TypeAdapter(kind)
        except pydantic.PydanticUserError as error:
            raise InvalidArgumentError(f"kind={kind!r} is no type of pydantic: {error.message}") from error
        self._error_type = pydantic.ValidationError

    def encode(self, value: ValueT, /) -> bytes:
        """Return the JSON of a value. Raises `ValueError` if it is none of the codec's type."""
        body = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error")
        self.decode(body)
        return body

    def decode(self, body: bytes, /) -> ValueT:
        """Return the value. Raises `ValueError`, which names the fields."""
        try:
            return self._adapter.validate_json(body)
        except self._error_type as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            texts = [f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in faults]
            raise ValueError("; ".join(texts)) from error


class TextCodec:
    """Text as UTF-8."""

    content_type = "text/plain; charset=utf-8"

    def encode(self, value: str, /) -> bytes:
        """Return the text as UTF-8. Raises `TypeError` for anything else, `UnicodeEncodeError` for half surrogates."""
        if not isinstance(value, str):
            raise TypeError("a str is expected")
        return value.encode()

    def decode(self, body: bytes, /) -> str:
        """Return the text. Raises `UnicodeDecodeError` for bytes that are not UTF-8."""
        return body.decode()


class BytesCodec:
    """Bytes as they are, with a content type."""

    content_type = "application/octet-stream"

    def encode(self, value: bytes, /) -> bytes:
        """Return the bytes. Raises `TypeError` for anything else."""
        if not isinstance(value, bytes):
            raise TypeError("bytes are expected")
        return value

    def decode(self, body: bytes, /) -> bytes:
        """Return the bytes."""
        return body
