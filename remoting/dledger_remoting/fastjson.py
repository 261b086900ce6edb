"""fastjson's dialect of JSON, which RocketMQ's Java side writes: integer keys without quotes, objects as keys.

`{0:"a"}` and `{{"brokerName":"b","queueId":0,"topic":"T"}:12}` are not JSON. `encode_fastjson` writes either dialect
from plain values. `to_standard_json` turns either dialect into JSON for typed decoders: it quotes bare keys. An object
key becomes a string that holds the object's text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, TypeAlias

import msgspec

from .errors import BodyError

FastJsonValue: TypeAlias = (
    str
    | float
    | bool
    | msgspec.Struct
    | Mapping[str, "FastJsonValue"]
    | Mapping[int, "FastJsonValue"]
    | Mapping[msgspec.Struct, "FastJsonValue"]
    | list["FastJsonValue"]
    | tuple["FastJsonValue", ...]
    | None
)

_encode_text: Final = msgspec.json.Encoder().encode
_WHITESPACE: Final = b" \t\r\n"
_BARE_KEY_BYTES: Final = frozenset(b"0123456789-+._$abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MAX_DEPTH: Final = 256


def encode_fastjson(value: FastJsonValue, *, standard: bool = False) -> bytes:
    """Encode a value as compact text with sorted keys. None fields are left out.

    `standard` quotes integer keys and writes non-ASCII characters as `\\uXXXX`, as fastjson does for clients that want
    plain JSON. Object keys stay objects, which only Java reads.
    """
    parts: list[bytes] = []
    _write(parts, value, standard)
    return b"".join(parts)


@cache
def _field_names(struct_type: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return wire name and name of each field of a struct. Cached, because asking msgspec each time is too slow."""
    return tuple((field.encode_name, field.name) for field in msgspec.structs.fields(struct_type))


def _write(parts: list[bytes], value: FastJsonValue, standard: bool) -> None:
    if isinstance(value, msgspec.Struct):
        fields = {wire_name: getattr(value, name) for wire_name, name in _field_names(type(value))}
        _write_map(parts, fields.items(), standard)
    elif isinstance(value, Mapping):
        _write_map(parts, value.items(), standard)
    elif isinstance(value, (list, tuple)):
        parts.append(b"[")
        for position, item in enumerate(value):
            if position:
                parts.append(b",")
            _write(parts, item, standard)
        parts.append(b"]")
    else:
        parts.append(_scalar(value, standard))


def _write_map(
    parts: list[bytes], items: Iterable[tuple[str | int | msgspec.Struct, FastJsonValue]], standard: bool
) -> None:
    parts.append(b"{")
    first = True
    for key, value in sorted(items, key=_sort_key):
        if value is None:
            continue
        if not first:
            parts.append(b",")
        first = False
        if isinstance(key, int):
            parts.append(b'"%d"' % key if standard else b"%d" % key)
        else:
            _write(parts, key, standard)
        parts.append(b":")
        _write(parts, value, standard)
    parts.append(b"}")


def _sort_key(item: tuple[str | int | msgspec.Struct, FastJsonValue]) -> tuple[int, int, str]:
    key = item[0]
    if isinstance(key, int):
        return (0, key, "")
    return (1, 0, key) if isinstance(key, str) else (2, 0, _encode_text(key).decode())


def _scalar(value: str | float | bool | None, standard: bool) -> bytes:
    if standard and isinstance(value, str):
        return json.dumps(value).encode()
    return _encode_text(value)


def to_standard_json(data: bytes) -> bytes:
    """Return JSON with the same content. Raises `BodyError` if the text is visibly in neither dialect.

    Values are copied without a check, so a typed decoder still has to judge them.
    """
    reader = _Reader(data)
    parts: list[bytes] = []
    reader.value(parts, 0)
    if reader.peek() is not None:
        raise reader.error("text goes on after the value")
    return b"".join(parts)


class _Reader:
    """A cursor over the text. Each method reads one piece, and writes it to `parts` as JSON."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._in_key = False

    def error(self, what: str) -> BodyError:
        return BodyError(f"JSON text cannot be read at byte {self._position}: {what}")

    def peek(self) -> int | None:
        """Return the next byte that is not white space, None at the end."""
        data = self._data
        while self._position < len(data) and data[self._position] in _WHITESPACE:
            self._position += 1
        return data[self._position] if self._position < len(data) else None

    def value(self, parts: list[bytes], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self.error(f"nested deeper than {_MAX_DEPTH}")
        start = self.peek()
        if start is None:
            raise self.error("text ends where a value should be")
        if start == ord("{"):
            self._collection(parts, depth, b"{", b"}")
        elif start == ord("["):
            self._collection(parts, depth, b"[", b"]")
        elif start == ord('"'):
            parts.append(self._string())
        else:
            parts.append(self._bare())

    def _collection(self, parts: list[bytes], depth: int, opening: bytes, closing: bytes) -> None:
        self._position += 1
        parts.append(opening)
        if self.peek() == closing[0]:
            self._position += 1
            parts.append(closing)
            return
        while True:
            if opening == b"{":
                self._key(parts, depth + 1)
            self.value(parts, depth + 1)
            end = self.peek()
            self._position += 1
            if end == closing[0]:
                parts.append(closing)
                return
            if end != ord(","):
                raise self.error(f"',' or '{closing.decode()}' expected")
            parts.append(b",")

    def _key(self, parts: list[bytes], depth: int) -> None:
        start = self.peek()
        if start == ord('"'):
            parts.append(self._string())
        elif start == ord("{"):
            if self._in_key:  # each further level would double the backslashes of all levels inside
                raise self.error("an object is a key of an object that is a key itself")
            key: list[bytes] = []
            self._in_key = True
            self.value(key, depth)
            self._in_key = False
            try:
                parts.append(_encode_text(b"".join(key).decode()))
            except UnicodeDecodeError as error:
                raise self.error("a key is not UTF-8") from error
        else:
            parts.append(b'"%b"' % self._bare())
        if self.peek() != ord(":"):
            raise self.error("':' expected after a key")
        self._position += 1
        parts.append(b":")

    def _string(self) -> bytes:
        data = self._data
        start = self._position
        end = start + 1
        while True:
            end = data.find(b'"', end)
            if end < 0:
                raise self.error("a string does not end")
            backslashes = 0
            while data[end - 1 - backslashes] == ord("\\"):
                backslashes += 1
            end += 1
            if backslashes % 2 == 0:
                self._position = end
                return data[start:end]

    def _bare(self) -> bytes:
        data = self._data
        start = end = self._position
        while end < len(data) and data[end] in _BARE_KEY_BYTES:
            end += 1
        if end == start:
            raise self.error(f"unexpected byte {data[start] if start < len(data) else 'after the end'}")
        self._position = end
        return data[start:end]
