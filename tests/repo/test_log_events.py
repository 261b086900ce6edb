"""The log events are exactly those on the page for operators, and every log line names one of them."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for folder in (
        "dledger/dledger",
        "broker/dledger_broker",
        "namesrv/dledger_namesrv",
        "base/dledger_base",
        "proxy/dledger_proxy",
    )
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
LEVELS = {"debug", "info", "warning", "error", "exception"}


class Line(NamedTuple):
    """Call of a logger, with the source of its first argument if that is no plain text.

    A text of an event that is logged elsewhere, as by a limiter of lines, has the level `told`.
    """

    level: str
    text: str


def lines(path: Path, text: str) -> list[Line]:
    """Return the calls of a logger in a module, and the texts of events that other functions log."""
    tree = ast.parse(text)
    calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call)]
    found = []
    for call in calls:
        match call.func:
            case ast.Attribute(ast.Name("log" | "_log" | "logger" | "_logger"), level) if level in LEVELS:
                first = call.args[0]
                said = first.value if isinstance(first, ast.Constant) else f"{path.name}: {ast.unparse(first)}"
                found.append(Line(level, str(said)))
    logged = {line.text for line in found}
    parts = [part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values]
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str(said)) if said.startswith("event=") and said not in logged and node not in parts:
                found.append(Line("told", said))
    return found


LINES = [line for path, text in SOURCES.items() for line in lines(path, text)]


def test_every_event_on_the_page_is_logged():
    source = "\n".join(SOURCES.values())
    for event in {*NAMED} - {"log_format", "log_file", "log_level"}:
        assert re.search(rf'event={event.replace("_", "[-_]")}(?![\w-])|"{event}"', source), event


def test_every_event_but_those_for_developers_is_on_the_page():
    told = [line.text for line in LINES if line.level != "debug"]
    events = {found[1].replace("-", "_") for text in told if (found := re.search(r"event=(\w[\w-]*)", text))}
    assert len(events) > 80
    assert events - {*NAMED} == set()


def test_every_line_is_an_event_and_fields_and_no_prose():
    found = [line.text for line in LINES]
    assert len(found) > 90
    assert [line for line in found if not FORM.fullmatch(line) and line not in READY_MADE] == []
    assert READY_MADE.keys() <= {*found}
