"""Files of segments: a reader that must not wait does not wait for a thread that opens a file."""

from __future__ import annotations

import threading
from pathlib import Path

from dledger.store.disk import File, OsDisk
from dledger.store.segments import Segment, segment_path

SECONDS = 20


class SlowDisk(OsDisk):
    """Disk that opens files when the test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.opening = threading.Event()
        self.go_on = threading.Event()

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> File:
        self.opening.set()
        assert self.go_on.wait(SECONDS)
        return super().open(path, create=create, write_through=write_through)


def test_an_event_loop_does_not_wait_for_a_worker_that_opens_the_file(tmp_path: Path) -> None:
    """The worker holds the segment's lock while the disk opens the file. A waiting event loop would answer nobody."""
    (tmp_path / segment_path(0)).parent.mkdir()
    (tmp_path / segment_path(0)).write_bytes(b"entries")
    disk = SlowDisk(tmp_path)
    segment = Segment(disk, 0, 0)
    worker = threading.Thread(target=segment.acquire, daemon=True)
    loop = threading.Thread(target=segment.acquire_open, daemon=True)
    worker.start()
    assert disk.opening.wait(SECONDS)
    loop.start()
    loop.join(SECONDS)
    answered = not loop.is_alive()
    disk.go_on.set()
    worker.join(SECONDS)
    assert answered
    assert segment.acquire_open() is not None
    for _ in range(2):
        segment.release()
    assert not segment.held
