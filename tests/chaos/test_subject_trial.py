"""A round is judged by its history alone."""

import json
from pathlib import Path

from dledger_chaos.history import Recorder
from dledger_chaos.subjects.trial import SHORTEST_FILE, judge


def recorded(directory: Path, *, found: str | None, outcome: str = "ok") -> None:
    with Recorder(directory) as recorder:
        write = recorder.invoke("registers", "writer-0", "write", "r0", "r0")
        getattr(write, outcome)()
        recorder.invoke("registers", "reader-b", "read", "r0").ok("r0")
        recorder.invoke("registers", "reader-c", "read", "r0").ok(found)


def test_a_write_that_was_acknowledged_and_is_gone_convicts(tmp_path: Path) -> None:
    recorded(tmp_path, found=None)
    verdict = judge(tmp_path)
    assert list(verdict.lost) == ["r0"]
    story = json.loads((tmp_path / SHORTEST_FILE).read_text())
    assert [(each["f"], each["process"]) for each in story] == [("write", "writer-0"), ("read", "reader-c")]


def test_a_write_that_is_found_does_not(tmp_path: Path) -> None:
    recorded(tmp_path, found="r0")
    assert judge(tmp_path).lost == {}
    assert not (tmp_path / SHORTEST_FILE).exists()


def test_a_write_of_unknown_outcome_may_be_found_late_but_not_vanish(tmp_path: Path) -> None:
    recorded(tmp_path, found=None, outcome="info")
    assert list(judge(tmp_path).lost) == ["r0"]
