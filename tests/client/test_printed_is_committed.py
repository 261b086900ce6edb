"""`dledger consume` commits what is printed, and nothing else: a full disk or a closed pipe loses no message."""

from __future__ import annotations

import io
import sys

import pytest
from test_sync import cluster  # noqa: F401 - a fixture

from dledger_admin.commands.consume import consume
from dledger_client import SyncProducer


class Output(io.RawIOBase):
    """Takes so many messages, and then no more."""

    def __init__(self, room: int) -> None:
        self.printed: list[bytes] = []
        self._room = room

    def write(self, data) -> int:
        if len(self.printed) == self._room:
            raise OSError(28, "No space left on device")
        self.printed.append(bytes(data))
        return len(data)

    @property
    def buffer(self):
        return self


def printed(cluster, monkeypatch, room, *options):  # noqa: F811
    with SyncProducer(cluster.namesrv) as producer:
        producer.send_batch("T", [b"%d" % number for number in range(5)])
    output = Output(room)
    monkeypatch.setattr(sys, "stdout", output)
    arguments = ["--namesrv", cluster.namesrv, "--topic", "T", "--group", "CG", "--from-beginning", *options]
    try:
        consume.main(arguments, standalone_mode=False)
    finally:
        monkeypatch.undo()
    return len(output.printed)


@pytest.mark.parametrize(("options", "committed"), [(("--count", "5"), 3), (("--exit-eof",), 0)])
def test_a_message_that_could_not_be_printed_is_not_committed(options, committed, cluster, monkeypatch):  # noqa: F811
    with pytest.raises(OSError, match="No space left"):
        printed(cluster, monkeypatch, 3, *options)
    assert cluster.group.offsets.get(("CG", "T", 0), 0) == committed


@pytest.mark.parametrize("options", [("--count", "5"), ("--exit-eof",)])
def test_what_was_printed_is_committed(options, cluster, monkeypatch):  # noqa: F811
    assert printed(cluster, monkeypatch, 9, *options) == 5
    assert cluster.group.offsets["CG", "T", 0] == 5
