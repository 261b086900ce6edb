"""All processes and loggers write log lines in one format."""

import json
import logging
import sys
import threading
import time

import pytest
from node_group import leading

from dledger.replica.writing.leading import Roster
from dledger.types import Membership, ReplicaId
from dledger_base import line_writer
from dledger_base.line_writer import LineWriter
from dledger_base.logs import STDOUT, LogFormatter, announce, open_log, set_levels


def record(message: str, *arguments: object, exc_info: object = None) -> logging.LogRecord:
    made = logging.LogRecord("dledger.node", logging.WARNING, __file__, 1, message, arguments, exc_info)
    made.created = 1_764_081_155.5594
    return made


START = "2025-11-25T14:32:35.559Z level=WARNING logger=dledger.node"


@pytest.mark.parametrize(
    ("message", "arguments", "line", "fields"),
    [
        ("event=trim position=%d", (7,), "node=n0 event=trim position=7", {"position": 7}),
        ("node=n1 event=failed error=%r", ("no space: a=b",), "node=n1 event=failed error='no space: a=b'", None),
        ("event=repair-waits start=1", (), "node=n0 event=repair_waits start=1", {"start": 1}),
        ("peer=n2 event=lost why=%s", ("two words",), "node=n0 event=lost peer=n2 why='two words'", None),
        ("event=odd then words key=1", (), "node=n0 event=odd then words key=1", {"text": "then words", "key": 1}),
        ("a library says %s", ("event",), "node=n0 event=message text='a library says event'", None),
        ("event=two lines=%s", ("a\nb",), "node=n0 event=two lines='a\\nb'", {"lines": "a\nb"}),
        ("event=x group=%s", ("\x1b[2J\u202e",), "node=n0 event=x group='\\x1b[2J\\u202e'", {"group": "\x1b[2J\u202e"}),
        (
            "event=topic_deleted topic=%s share=%.2f%% cluster=%s",
            ("T event=failed node=n9", 0.5, "it's"),
            "node=n0 event=topic_deleted topic='T event=failed node=n9' share=0.50% cluster=\"it's\"",
            {"topic": "T event=failed node=n9", "share": "0.50%", "cluster": "it's"},
        ),
        ("event=configuration %s", ("a='1' b='2'",), "node=n0 event=configuration a='1' b='2'", {"a": "1", "b": "2"}),
    ],
)
def test_a_line_has_time_level_logger_node_and_event_in_front_of_its_fields(message, arguments, line, fields):
    assert LogFormatter("text", "n0").format(record(message, *arguments)) == f"{START} {line}"
    found = json.loads(LogFormatter("json", "n0").format(record(message, *arguments)))
    assert list(found)[:5] == ["time", "level", "logger", "node", "event"]
    assert (found["time"], found["level"]) == ("2025-11-25T14:32:35.559Z", "WARNING")
    if fields is not None:
        assert {key: found[key] for key in list(found)[5:]} == fields


def test_quoted_values_are_read_without_their_quotes():
    found = json.loads(LogFormatter("json", "n0").format(record("event=x reason=%r to=%s", 'it\'s "so"', "n1")))
    assert (found["reason"], found["to"]) == ('it\'s "so"', "n1")


def test_a_traceback_follows_the_line_and_is_one_field_of_json():
    try:
        raise KeyError("k")
    except KeyError:
        error = sys.exc_info()
    lines = LogFormatter("text", "n0").format(record("event=failed", exc_info=error)).split("\n")
    assert lines[:2] == [f"{START} node=n0 event=failed", "Traceback (most recent call last):"]
    assert json.loads(LogFormatter("json", "n0").format(record("event=failed", exc_info=error)))["traceback"].endswith(
        "KeyError: 'k'"
    )


def test_the_log_goes_to_a_created_file_or_to_standard_output(tmp_path, capsys):
    handler = LineWriter(LogFormatter("text", "n0")).write_to(open_log(tmp_path / "logs" / "n0.log"))
    handler.emit(record("event=ready"))
    handler.close()
    assert (tmp_path / "logs" / "n0.log").read_text() == f"{START} node=n0 event=ready\n"
    handler = LineWriter(LogFormatter("json", "n0")).write_to(open_log(STDOUT))
    handler.emit(record("event=ready"))
    handler.close()
    assert json.loads(capsys.readouterr().out)["event"] == "ready"


def test_a_file_that_was_moved_or_removed_is_opened_again(tmp_path):
    path, moved = tmp_path / "n0.log", tmp_path / "n0.log-20261129"
    handler = open_log(path)
    handler.emit(record("event=first"))
    path.rename(moved)
    handler.emit(record("event=second"))
    path.unlink()
    handler.emit(record("event=third"))
    handler.close()
    assert (moved.read_text(), path.read_text()) == ("event=first\n", "event=third\n")


class Stalled(logging.Handler):
    """Handler whose disk hangs until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.lines = []

    def emit(self, record):
        self.go_on.wait()
        self.lines.append(record.getMessage())


def test_logging_does_not_wait_for_a_stalled_disk_and_loses_no_line():
    disk = Stalled()
    writer = LineWriter(logging.Formatter()).write_to(disk)
    for number in range(100):
        writer.handle(record("event=line number=%d", number))
    assert disk.lines == []
    disk.go_on.set()
    writer.close()
    writer.close()
    assert disk.lines == [f"event=line number={number}" for number in range(100)]


def test_lines_logged_before_the_destination_is_known_come_first_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(line_writer, "MAX_WAITING_LINES", 2)
    writer, disk = LineWriter(logging.Formatter()), Stalled()
    disk.go_on.set()
    for number in range(5):
        writer.handle(record("event=early number=%d", number))
    writer.write_to(disk)
    while len(disk.lines) < 2:
        time.sleep(0.001)
    writer.handle(record("event=later"))
    writer.close()
    early = ["event=early number=0", "event=early number=1"]
    assert disk.lines == [*early, "event=log_lines_lost lines=3", "event=later"]
    LineWriter(logging.Formatter()).close()  # a process that ended before it configured logging


def test_lines_that_a_standing_disk_leaves_no_room_for_are_counted_in_the_log(monkeypatch):
    monkeypatch.setattr(line_writer, "MAX_WAITING_LINES", 4)
    disk = Stalled()
    writer = LineWriter(logging.Formatter()).write_to(disk)
    for number in range(100):
        writer.handle(record("event=line number=%d", number))
    disk.go_on.set()
    while len(disk.lines) < 4:
        time.sleep(0.001)
    writer.handle(record("event=back"))
    writer.close()
    # The thread may write its first line between two others. The losses before it are then reported there.
    told = [int(line.rpartition("=")[2]) for line in disk.lines if line.startswith("event=log_lines_lost")]
    kept = [line for line in disk.lines if line.startswith("event=line")]
    assert disk.lines[-2:] == [f"event=log_lines_lost lines={told[-1]}", "event=back"]
    assert sum(told) == 100 - len(kept)
    assert len(kept) <= 5


def test_a_full_disk_behind_standard_output_ends_nothing(monkeypatch):
    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

        flush = write

    monkeypatch.setattr(sys, "stdout", Full())
    announce("ready")


async def test_a_node_says_which_role_it_has(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="dledger")
    async with leading(tmp_path) as node:
        assert f"node=n0 event=role role=leader term={node.term} leader=n0" in caplog.messages


def test_added_promoted_demoted_and_removed_members_are_logged(caplog):
    caplog.set_level(logging.INFO, logger="dledger")
    a, b, other_b = ReplicaId("a", "1"), ReplicaId("b", "1"), ReplicaId("b", "2")
    roster = Roster("a", Membership((a,)))
    for membership in (
        Membership((a,), (b,)),
        Membership((a, b)),
        Membership((a, b)),
        Membership((a,), (b,)),
        Membership((a,), (other_b,)),
    ):
        roster.note_changed(membership)
    assert [" ".join(line.split()[1:4]) for line in caplog.messages] == [
        "event=learner_added member=b incarnation=1",
        "event=learner_promoted member=b incarnation=1",
        "event=voter_demoted member=b incarnation=1",
        "event=learner_added member=b incarnation=2",
        "event=member_removed member=b incarnation=1",
    ]


@pytest.fixture
def levels_as_before():
    loggers = [logging.getLogger(name) for name in ("", "levels", "levels.quiet")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("levels_as_before")
def test_a_logger_has_the_level_of_its_nearest_configured_ancestor():
    set_levels("WARNING", {"levels": "DEBUG", "levels.quiet": "ERROR"})
    enabled = {
        name: logging.getLogger(name).getEffectiveLevel()
        for name in ("other", "levels", "levels.below", "levels.quiet.below")
    }
    assert enabled == {
        "other": logging.WARNING,
        "levels": logging.DEBUG,
        "levels.below": logging.DEBUG,
        "levels.quiet.below": logging.ERROR,
    }
