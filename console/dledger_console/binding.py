"""Binding of requests to structs: names in the path, then the query or the body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec
from aiohttp import web

Wanted = TypeVar("Wanted", bound=msgspec.Struct)

TOKEN_FIELD = "token"  # noqa: S105 -- the name of a field
CONFIRM_FIELD = "confirm"
OWN_FIELDS = frozenset({TOKEN_FIELD, CONFIRM_FIELD})
"""Fields of forms that belong to the console, not to the change."""


class BindingError(Exception):
    """A request whose parameters are not those of its page. The text says which one."""


class JsonChange(msgspec.Struct, frozen=True):
    """The part of a change's JSON that does not belong to its struct: `dry_run` shows the effects only."""

    dry_run: bool = False


def bind_query(request: web.Request, wanted: type[Wanted]) -> Wanted:
    """Return the struct of a path and a query. Raises `BindingError`."""
    return _convert({**_texts(wanted, request.query.items()), **request.match_info}, wanted)


async def bind_form(request: web.Request, wanted: type[Wanted]) -> tuple[Wanted, list[tuple[str, str]]]:
    """Return the struct of a path and a form, and the form's fields that are the change's. Raises `BindingError`."""
    posted = await request.post()
    fields = [
        (name, value.replace("\r\n", "\n"))  # browsers send line ends of textareas like this
        for name, value in posted.items()
        if isinstance(value, str) and name not in OWN_FIELDS
    ]
    return _convert({**_texts(wanted, fields), **request.match_info}, wanted), fields


async def bind_json(request: web.Request, wanted: type[Wanted]) -> tuple[Wanted, bool]:
    """Return the struct of a path and a JSON body, and whether it is a dry run. Raises `BindingError`."""
    try:
        body = await request.read()
        values = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        dry_run = msgspec.convert(values, JsonChange).dry_run
        return msgspec.convert({**values, **request.match_info}, wanted), dry_run
    except msgspec.MsgspecError as error:
        raise BindingError(str(error)) from error


def _texts(wanted: type[msgspec.Struct], items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a query or form; an empty text means that a field is not given."""
    hints = get_type_hints(wanted)
    values: dict[str, Any] = {}
    for name, text in items:
        if get_origin(hints.get(name)) is list:
            values.setdefault(name, []).append(text)
        elif text:
            values[name] = text
    return values


def _convert(values: Mapping[str, Any], wanted: type[Wanted]) -> Wanted:
    try:
        return msgspec.convert(values, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise BindingError(str(error)) from error
