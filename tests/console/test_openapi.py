"""The document of the console's JSON is valid, describes every page and change, and the answers are as it says."""

from __future__ import annotations

import json

import jsonschema
import pytest
from openapi_spec_validator import validate

from dledger_console.views import CHANGES, LOOKS


@pytest.fixture
def document(visitor):
    return visitor.read("/openapi.json")


def schema_of(document, path: str, method: str, status: str = "200"):
    content = document["paths"][path][method]["responses"][status]["content"]
    (media_type,) = content
    return {**content[media_type]["schema"], "components": document["components"]}


def test_the_document_is_valid_and_has_every_page_and_change(document):
    validate(document)
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == {
        *((f"/api{look.path.rstrip('/')}", "get") for look in LOOKS),
        *((f"/api{change.path}", "post") for change in CHANGES),
        ("/api/openapi.json", "get"),
    }


ANSWERED = (
    ("", ""),
    ("/broker-groups", "/broker-groups?page=1"),
    ("/broker-groups/{broker_group}", "/broker-groups/broker-a"),
    ("/topics", "/topics?q=ord"),
    ("/topics/{topic}", "/topics/orders"),
    ("/consumer-groups", "/consumer-groups"),
    ("/consumer-groups/{group}", "/consumer-groups/billing"),
    ("/messages", "/messages?topic=orders&by=key&value=order-1"),
    ("/dead-letters", "/dead-letters"),
)


@pytest.mark.parametrize(("path", "asked"), ANSWERED, ids=lambda value: value or "overview")
def test_answers_are_as_the_document_says(visitor, document, path, asked):
    schema = schema_of(document, f"/api{path}", "get")
    answer = visitor.read(asked)
    jsonschema.validate(answer, schema)
    described = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    assert set(answer) <= set(described["properties"])


def test_a_dry_run_and_a_problem_are_as_the_document_says(visitor, document):
    change = "/api/topics/{topic}/delete"
    assert document["paths"][change]["post"]["parameters"][-1]["name"] == "X-CSRF-Token"
    headers = {"X-CSRF-Token": visitor.token(), "Sec-Fetch-Site": "same-origin"}
    answered = visitor.http.post("/api/topics/orders/delete", content=json.dumps({"dry_run": True}), headers=headers)
    assert answered.status_code == 200, answered.text
    assert set(answered.json()) == {"effects"}
    jsonschema.validate(answered.json(), schema_of(document, change, "post"))
    missing = visitor.http.get("/api/topics/absent")
    jsonschema.validate(missing.json(), schema_of(document, "/api/topics/{topic}", "get", str(missing.status_code)))


def test_fields_of_the_path_are_in_the_path_and_nowhere_else(document):
    for path, methods in document["paths"].items():
        for entry in methods.values():
            places = {parameter["name"]: parameter["in"] for parameter in entry.get("parameters", ())}
            for name in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
                assert places[name] == "path"


def test_the_document_needs_no_session(visitor):
    visitor.http.cookies.clear()
    assert visitor.http.get("/api/openapi.json").json()["openapi"] == "3.1.0"
