"""Codec between ext fields (text to text) and typed header structs.

Decoding is as tolerant as clients need. `true`, `TRUE` and `1` are true, every other text is false. Unknown fields are
ignored. An empty text in an optional number means "absent". A field that cannot be read raises `HeaderFieldError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, TypeVar, get_args

import msgspec

from .errors import HeaderFieldError
from .integers import MAX_INT32

HeaderT = TypeVar("HeaderT", bound=msgspec.Struct)

_TRUE: Final = frozenset({"true", "TRUE", "1"})


class _Layout(msgspec.Struct, frozen=True, gc=False):
    """Facts about a header type that reading and writing need, computed once per type."""

    fields: tuple[msgspec.structs.FieldInfo, ...]
    boolean_names: tuple[str, ...]
    optional_number_names: tuple[str, ...]


@cache
def _layout(header_type: type[msgspec.Struct]) -> _Layout:
    fields = msgspec.structs.fields(header_type)
    return _Layout(
        fields=fields,
        boolean_names=tuple(field.encode_name for field in fields if _holds(field, bool)),
        optional_number_names=tuple(field.encode_name for field in fields if not field.required and _holds(field, int)),
    )


def _holds(field: msgspec.structs.FieldInfo, kind: type) -> bool:
    """Return whether the field is of `kind`, alone, optional or with bounds."""

    def base_types(annotation: object) -> list[object]:
        arguments = get_args(annotation)
        if not arguments:
            return [annotation]
        if hasattr(annotation, "__metadata__"):
            return base_types(arguments[0])
        return [base for argument in arguments for base in base_types(argument)]

    return kind in base_types(field.type)


def decode_ext(header_type: type[HeaderT], ext: Mapping[str, str]) -> HeaderT:
    """Read `header_type` from ext fields. Raises `HeaderFieldError` for the first field that is missing or wrong."""
    layout = _layout(header_type)
    adjusted: dict[str, str | bool] | None = None
    for name in layout.boolean_names:
        value = ext.get(name)
        if value is not None:
            if adjusted is None:
                adjusted = dict(ext)
            adjusted[name] = value in _TRUE
    for name in layout.optional_number_names:
        if ext.get(name) == "":
            if adjusted is None:
                adjusted = dict(ext)
            del adjusted[name]
    try:
        return msgspec.convert(ext if adjusted is None else adjusted, header_type, strict=False)
    except msgspec.ValidationError as error:
        raise _field_error(header_type, layout, ext) or HeaderFieldError(
            header_type.__name__, "?", None, str(error)
        ) from error


def encode_ext(header: msgspec.Struct) -> dict[str, str]:
    """Encode a header as ext fields. Fields that are None are left out; booleans become `true` or `false`."""
    ext: dict[str, str] = {}
    for field in _layout(type(header)).fields:
        value: str | int | bool | None = getattr(header, field.name)
        if value is None:
            continue
        if isinstance(value, bool):
            ext[field.encode_name] = "true" if value else "false"
        else:
            ext[field.encode_name] = value if isinstance(value, str) else str(int(value))
    return ext


def _field_error(header_type: type[msgspec.Struct], layout: _Layout, ext: Mapping[str, str]) -> HeaderFieldError | None:
    """Return the error of the first field that cannot be read by itself."""
    for field in layout.fields:
        value = ext.get(field.encode_name)
        if value is None:
            if field.required:
                return HeaderFieldError(header_type.__name__, field.encode_name, None, _expectation(field))
            continue
        if _holds(field, bool) or (value == "" and not field.required):
            continue
        try:
            msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError:
            return HeaderFieldError(header_type.__name__, field.encode_name, value, _expectation(field))
    return None


def _expectation(field: msgspec.structs.FieldInfo) -> str:
    """Describe in words what a field accepts."""
    if _holds(field, int):
        bounds = "32" if str(MAX_INT32) in repr(field.type) else "64"
        return f"a decimal number of {bounds} bits"
    if _holds(field, bool):
        return "true or false"
    return "a text"
