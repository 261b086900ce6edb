"""Recordings are compared line by line, and are written only on request."""

from pathlib import Path

import pytest

from tests.recorded.golden_files import compare


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECORD_GOLDEN", "yes")


@pytest.fixture(autouse=True)
def comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECORD_GOLDEN", raising=False)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_bytes("one\ntwo\r\nthree \u2028 ü\n".encode())
    return tmp_path


def test_a_recording_is_compared_byte_for_byte_and_nothing_is_recorded_unasked(recorded: Path) -> None:
    compare("words", ["one", "two\r", "three \u2028 ü"], folder=recorded)
    with pytest.raises(pytest.fail.Exception, match="was not recorded"):
        compare("others", ["one"], folder=recorded)
    assert [path.name for path in recorded.iterdir()] == ["words.txt"]


@pytest.mark.parametrize(
    "lines",
    [
        ["one", "two", "three \u2028 ü"],
        ["one", "two\r"],
        ["one", "two\r", "three \u2028 ü", ""],
        ["two\r", "one", "three \u2028 ü"],
        [],
    ],
    ids=["changed", "shorter", "longer", "other order", "empty"],
)
def test_another_line_fails_and_shows_the_difference(recorded: Path, lines: list[str]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"words\.txt is not what was recorded\n--- recorded words\.txt"):
        compare("words", lines, folder=recorded)
    assert (recorded / "words.txt").read_bytes() == "one\ntwo\r\nthree \u2028 ü\n".encode()


def test_a_comparison_accepts_a_fresh_recording(
    tmp_path: Path, recording: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["", "a\r", "ü", ""]
    compare("folder/words", lines, folder=tmp_path)
    assert (tmp_path / "folder/words.txt").read_bytes() == "\na\r\nü\n\n".encode()
    monkeypatch.delenv("RECORD_GOLDEN")
    compare("folder/words", lines, folder=tmp_path)
