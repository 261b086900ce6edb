"""What is recorded is compared line by line, and written only when asked for."""

import hashlib
from pathlib import Path

import pytest

from tests.recorded.golden_files import LONGEST_HEX, MOST_DIFFERENCES, bytes_text, compare


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


def test_what_was_recorded_is_equal_byte_for_byte(recorded: Path) -> None:
    compare("words", ["one", "two\r", "three \u2028 ü"], folder=recorded)


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


def test_a_long_difference_is_cut(recorded: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"\.\.\. and \d+ lines more") as failure:
        compare("words", [f"line {i} " + 1000 * "x" for i in range(500)], folder=recorded)
    assert len(str(failure.value)) < (MOST_DIFFERENCES + 2) * 400


def test_recording_writes_what_a_comparison_then_accepts(
    tmp_path: Path, recording: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["", "a\r", "ü", ""]
    compare("folder/words", lines, folder=tmp_path)
    assert (tmp_path / "folder/words.txt").read_bytes() == "\na\r\nü\n\n".encode()
    monkeypatch.delenv("RECORD_GOLDEN")
    compare("folder/words", lines, folder=tmp_path)


def test_what_need_not_stay_is_left_out_of_the_comparison(recorded: Path) -> None:
    (recorded / "counted.txt").write_text("one 1\ntwo 2\n")
    compare("counted", ["one 7", "two 9"], folder=recorded, kept=lambda line: line.split()[0])
    with pytest.raises(pytest.fail.Exception, match="counted"):
        compare("counted", ["one 1", "three 2"], folder=recorded, kept=lambda line: line.split()[0])


def test_nothing_is_recorded_unasked(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="was not recorded"):
        compare("words", ["one"], folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_line_with_an_end_of_its_own_is_refused(recorded: Path) -> None:
    with pytest.raises(AssertionError, match="an end of its own"):
        compare("words", ["one\ntwo\r", "three \u2028 ü"], folder=recorded)


def test_bytes_are_shown_up_to_a_length() -> None:
    assert bytes_text(b"") == "-"
    assert bytes_text(memoryview(b"\x00\xff")) == "00ff"
    assert bytes_text(LONGEST_HEX * b"a") == LONGEST_HEX * "61"
    longer = bytearray((LONGEST_HEX + 1) * b"a")
    assert bytes_text(longer) == f"{LONGEST_HEX + 1}:sha256:{hashlib.sha256(longer).hexdigest()}"
