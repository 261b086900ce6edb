"""OpenAPI 3.1 document of the console's JSON, made from the structs of its pages and changes."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, get_type_hints

import msgspec

from dledger_base.extras import package_version
from dledger_base.openapi import Header, Interface, Json, Operation
from dledger_base.openapi import document as make_document

from .pages import AnyChange, AnyLook, Nothing
from .problems import Problem

PATH: Final = "/openapi.json"
"""Path of the document, below `/api`."""
_PROBLEMS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_IN_PATH: Final = {
    "broker_group": "name of a broker group",
    "topic": "name of a topic",
    "group": "name of a consumer group",
    "offset_id": "offset message id of a message",
}


class Effects(msgspec.Struct, frozen=True):
    """Answer to a change with `dry_run`: what it would do, a text for each effect. Nothing was changed."""

    effects: list[str]


def document(looks: Iterable[AnyLook], changes: Iterable[AnyChange], api: str, token_header: str) -> Json:
    """Return the document of these pages and changes, ready to be encoded. `api` is the path before all paths."""
    operations = [
        *(_look(look, api) for look in looks),
        *(_change(change, api, token_header) for change in changes),
        Operation(
            name="openapi", method="GET", path=f"{api}{PATH}", summary="Describe this interface", answer=dict[str, Any]
        ),
    ]
    names = {name for operation in operations for name in _names_in(operation.path)}
    return make_document(
        Interface(
            title="dledger-mq console",
            version=package_version(),
            description="What the console shows, and its changes, as JSON. Rights are those of the account in the "
            "session; without access control no session is needed.",
            operations=operations,
            problem=Problem,
            in_path={name: _IN_PATH.get(name, name.replace("_", " ")) for name in names},
            security={
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "dledger_console_PORT",
                    "description": "cookie that the login page sets; PORT is the console's port",
                }
            },
        )
    )


def _look(look: AnyLook, api: str) -> Operation:
    return Operation(
        name=_name("get", look.path),
        method="GET",
        path=f"{api}{look.path.rstrip('/')}" or "/",
        summary=look.summary,
        parameters=None if look.wanted is Nothing else look.wanted,
        answer=get_type_hints(look.answer)["return"],
        problems=_PROBLEMS,
    )


def _change(change: AnyChange, api: str, token_header: str) -> Operation:
    return Operation(
        name=_name("post", change.path),
        method="POST",
        path=f"{api}{change.path}",
        summary=change.summary,
        description="With dry_run it answers the effects, and changes nothing.",
        body=_body(change),
        answer=get_type_hints(change.act)["return"],
        other_answer=Effects,
        headers=(Header(token_header, "token that the console's pages have in their forms", is_required=True),),
        problems=_PROBLEMS,
    )


def _body(change: AnyChange) -> type[msgspec.Struct]:
    """Return the struct of a change's body: the fields that are not in the path, and `dry_run`."""
    in_path = _names_in(change.path)
    fields: list[Any] = []
    for field in msgspec.structs.fields(change.wanted):
        if field.encode_name in in_path:
            continue
        if field.default is not msgspec.NODEFAULT:
            fields.append((field.encode_name, field.type, field.default))
        elif field.default_factory is not msgspec.NODEFAULT:
            fields.append((field.encode_name, field.type, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.encode_name, field.type))
    body = msgspec.defstruct(
        _name("post", change.path).title().replace("_", ""), [*fields, ("dry_run", bool, False)], kw_only=True
    )
    body.__doc__ = f"Body of the request. {change.summary}"
    return body


def _names_in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _name(method: str, path: str) -> str:
    words = [part.strip("{}").replace("-", "_") for part in path.split("/") if part]
    return "_".join([method, *(words or ["overview"])])
