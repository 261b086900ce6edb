"""The events of the logs are the ones that the page for operators names, and every line names one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for folder in ("dledger/dledger", "broker/dledger_broker", "namesrv/dledger_namesrv")
    for path in (ROOT / folder).rglob("*.py")
}
PAGE = (ROOT / "docs" / "operations" / "logs.md").read_text(encoding="utf-8")
NAMED = [name for row in re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
CALL = re.compile(r"\b_?log(?:ger)?\.(?:info|warning|error|exception)\(\s*(?P<text>f?\"[^\"]*\")")


@pytest.mark.parametrize("event", sorted({*NAMED} - {"log_format", "log_file"}))
def test_every_event_on_the_page_is_logged(event):
    words = (f"event={event}", f"event={event.replace('_', '-')}", f'"{event}"')
    assert any(word in text for text in SOURCES.values() for word in words)


def test_every_line_names_its_event():
    found = [(path, call["text"]) for path, text in SOURCES.items() for call in CALL.finditer(text)]
    assert len(found) > 60
    nameless = [(str(path.relative_to(ROOT)), text) for path, text in found if "event=" not in text]
    assert nameless == [("dledger/dledger/replica/concerns.py", '"node=%s %s"')], "whose text begins with its event"
