"""The events of the logs are the ones that the page for operators names, and every line names one."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for folder in ("dledger/dledger", "broker/dledger_broker", "namesrv/dledger_namesrv", "serving/dledger_serving")
    for path in (ROOT / folder).rglob("*.py")
}
PAGE = (ROOT / "docs" / "operations" / "logs.md").read_text(encoding="utf-8")
NAMED = [name for row in re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
FORM = re.compile(r"(node=%s )?event=(%s|\w+)( [a-z]\w*=(%s|%d|%r|%g|%\.\df|'[^']*'|\"[^\"]*\"|[\w.-]+))*")
READY_MADE = {
    "node=%s %s": "event and fields come together",
    "event=configuration %s": "its keys are those of the configuration",
    "event=configuration_changed %s": "so are these",
}


class Line(NamedTuple):
    """A call of a logger: what it is given first, as it is written there if it is no plain text."""

    level: str
    text: str


def lines(path: Path, text: str) -> list[Line]:
    """The calls of a logger in a module."""
    return [
        Line(
            call.func.attr,
            call.args[0].value
            if isinstance(call.args[0], ast.Constant)
            else f"{path.name}: {ast.unparse(call.args[0])}",
        )
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"debug", "info", "warning", "error", "exception"}
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in {"log", "_log", "logger", "_logger"}
    ]


LINES = [line for path, text in SOURCES.items() for line in lines(path, text)]


@pytest.mark.parametrize("event", sorted({*NAMED} - {"log_format", "log_file", "log_level"}))
def test_every_event_on_the_page_is_logged(event):
    words = re.compile(rf'event={event.replace("_", "[-_]")}(?![\w-])|"{event}"')
    assert any(words.search(text) for text in SOURCES.values())


def test_every_event_of_a_warning_or_an_error_is_on_the_page():
    grave = [line.text for line in LINES if line.level in {"warning", "error", "exception"}]
    events = {found[1].replace("-", "_") for text in grave if (found := re.search(r"event=(\w[\w-]*)", text))}
    assert len(events) > 60
    assert events <= {*NAMED}


def test_every_line_is_an_event_and_fields_and_no_prose():
    found = [line.text for line in LINES]
    assert len(found) > 90
    assert [line for line in found if not FORM.fullmatch(line) and line not in READY_MADE] == []
    assert READY_MADE.keys() <= {*found}
