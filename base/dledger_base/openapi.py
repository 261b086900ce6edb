"""OpenAPI 3.1 document of an HTTP interface, made from the structs that decode its requests and encode its answers.

An interface lists its operations once. Its server routes by them, and `document` describes them. So neither can differ
from the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec

VERSION: Final = "3.1.0"
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"

Json: TypeAlias = dict[str, Any]
"""A JSON object of the document."""

_REFERENCE: Final = "#/components/schemas/{name}"
_IN_PATH = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Header:
    """A header that an operation reads, always a text."""

    name: str
    description: str
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of an interface.

    name         its name, unique in the interface
    path         its path; names in braces are texts, which `Interface.in_path` describes
    parameters   struct of the query, and `body`, type of the request's body; None without one. Fields of the struct
                 that are names in the path belong to the path
    answer       type of the answer's body, or of the JSON in each event of a stream
    other_answer type of another body that the answer may have; None if there is no other
    media_type   form of the answer
    problems     statuses that it answers with a problem
    """

    name: str
    method: str
    path: str
    summary: str
    description: str = ""
    parameters: type[msgspec.Struct] | None = None
    body: Any = None
    answer: Any = None
    other_answer: Any = None
    media_type: str = JSON
    headers: Sequence[Header] = ()
    problems: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """An interface: its operations, the struct of its problems, the meaning of the names in its paths.

    `security` are the ways in which a request may name its account, by their names in the document.
    """

    title: str
    version: str
    description: str
    operations: Sequence[Operation]
    problem: type[msgspec.Struct]
    in_path: Mapping[str, str]
    security: Mapping[str, Mapping[str, str]]


def document(interface: Interface) -> Json:
    """Return the document of an interface, ready to be encoded."""
    schemas, components = _schemas_of(interface)
    query_names = {
        _name_in(schemas[id(operation.parameters)]) for operation in interface.operations if operation.parameters
    }
    paths: dict[str, Json] = {}
    for operation in interface.operations:
        entry = _entry_of(operation, interface, schemas, components)
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    return {
        "openapi": VERSION,
        "info": {"title": interface.title, "version": interface.version, "description": interface.description},
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in sorted(components.items()) if name not in query_names},
            "securitySchemes": dict(interface.security),
        },
        "security": [{}, *({name: []} for name in interface.security)],
    }


def _schemas_of(interface: Interface) -> tuple[Mapping[int, Json], Mapping[str, Json]]:
    """Return the schema of each type of the interface, by the type's identity, and the schemas that these refer to."""
    types: dict[int, Any] = {id(interface.problem): interface.problem}
    for operation in interface.operations:
        kinds = (operation.parameters, operation.body, operation.answer, operation.other_answer)
        types.update((id(kind), kind) for kind in kinds if kind)
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=_REFERENCE)
    return dict(zip(types, schemas, strict=True)), components


def _entry_of(
    operation: Operation, interface: Interface, schemas: Mapping[int, Json], components: Mapping[str, Json]
) -> Json:
    entry: Json = {"operationId": operation.name, "summary": operation.summary}
    if operation.description:
        entry["description"] = operation.description
    parameters = [
        *_path_parameters(operation, interface.in_path),
        *_query_parameters(operation, schemas, components),
        *(
            {
                "name": header.name,
                "in": "header",
                "description": header.description,
                "schema": {"type": "string"},
                **({"required": True} if header.is_required else {}),
            }
            for header in operation.headers
        ),
    ]
    if parameters:
        entry["parameters"] = parameters
    if operation.body is not None:
        entry["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[id(operation.body)]}}}
    entry["responses"] = _responses(operation, schemas, schemas[id(interface.problem)])
    return entry


def _path_parameters(operation: Operation, meanings: Mapping[str, str]) -> Iterable[Json]:
    for name in _IN_PATH.findall(operation.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": meanings[name],
            "schema": {"type": "string"},
        }


def _query_parameters(
    operation: Operation, schemas: Mapping[int, Json], components: Mapping[str, Json]
) -> Iterable[Json]:
    if operation.parameters is None:
        return
    component = components[_name_in(schemas[id(operation.parameters)])]
    in_path = _IN_PATH.findall(operation.path)
    for name, schema in component["properties"].items():
        if name in in_path:
            continue
        yield {"name": name, "in": "query", "required": name in component["required"], "schema": _not_null(schema)}


def _name_in(schema: Json) -> str:
    """Return the name of the component that a schema refers to. Structs of the same name have longer ones."""
    return str(schema["$ref"]).removeprefix(_REFERENCE.format(name=""))


def _not_null(schema: Json) -> Json:
    """Return the schema of a query's value, which cannot be null: a parameter that is not wanted is left out."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return choices[0]  # type: ignore[no-any-return]  # a schema, as the type of `Json` cannot tell


def _responses(operation: Operation, schemas: Mapping[int, Json], problem: Json) -> Json:
    success: Json = {"description": "success"}
    if operation.answer is not None:
        schema = schemas[id(operation.answer)]
        if operation.other_answer is not None:
            schema = {"anyOf": [schema, schemas[id(operation.other_answer)]]}
        success["content"] = {operation.media_type: {"schema": schema}}
    responses: Json = {"200": success}
    for status in sorted(operation.problems):
        responses[str(int(status))] = {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM: {"schema": problem}},
        }
    return responses
