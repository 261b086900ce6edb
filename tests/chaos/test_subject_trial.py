"""A round is judged by its history alone."""

import json
from pathlib import Path

import pytest

from dledger_chaos.history import Recorder
from dledger_chaos.subjects.trial import SHORTEST_FILE, judge


def recorded(directory: Path, *, found: str | None, outcome: str = "ok") -> None:
    with Recorder(directory) as recorder:
        write = recorder.invoke("registers", "writer-0", "write", "r0", "r0")
        getattr(write, outcome)()
        recorder.invoke("registers", "reader-b", "read", "r0").ok("r0")
        recorder.invoke("registers", "reader-c", "read", "r0").ok(found)


@pytest.mark.parametrize("outcome", ["ok", "info"])
def test_a_write_that_vanishes_after_it_was_read_is_a_violation_with_a_shortest_history(
    tmp_path: Path, outcome: str
) -> None:
    """A write of unknown outcome may be found late, but not vanish."""
    recorded(tmp_path, found=None, outcome=outcome)
    verdict = judge(tmp_path)
    assert list(verdict.lost) == ["r0"]
    story = json.loads((tmp_path / SHORTEST_FILE).read_text())
    processes = [("write", "writer-0"), ("read", "reader-c")]
    assert outcome == "info" or [(each["f"], each["process"]) for each in story] == processes


def test_an_acknowledged_write_that_is_found_is_no_violation(tmp_path: Path) -> None:
    recorded(tmp_path, found="r0")
    assert judge(tmp_path).lost == {}
    assert not (tmp_path / SHORTEST_FILE).exists()
