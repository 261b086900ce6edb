"""Plans of an archive, without Spark: the next part, the listed files, and the files that may be deleted."""

import os
import time
from datetime import UTC, datetime

import pytest

from dledger_spark.errors import DataLossError, JobError
from dledger_spark.jobs import archives
from dledger_spark.jobs.archives import Archive
from dledger_spark.jobs.archiving import KeptQueue, Range, at_most, check_same_topics, mode_for, wanted_ranges
from dledger_spark.jobs.compaction import compact, worthwhile
from dledger_spark.jobs.manifest import EMPTY, ArchivedFile, ArchivedQueue, Manifest, Manifests
from dledger_spark.jobs.storage import LocalStorage
from dledger_spark.offsets import Queue

QUEUE = Queue("orders", "broker-a", 0)
OTHER = Queue("orders", "broker-a", 1)


def manifest(version=1, *, queues=(), files=(), committed_ms=0):
    return Manifest(version, committed_ms, "archive", "a-run", [], list(queues), list(files))


def archived(offset, *, created=100, queue=QUEUE):
    return ArchivedQueue(*queue, created=created, next=offset)


def file(name, rows=10, size_bytes=1000, day="2026-01-01"):
    return ArchivedFile(name, "orders", day, rows, size_bytes)


# The next part of an archive.


def test_the_next_run_continues_known_queues_and_starts_others_at_their_start():
    """Others are new, or of a topic that was created again. Nothing is wanted of a queue that is archived whole."""
    kept = {QUEUE: KeptQueue(100, 0, 20), OTHER: KeptQueue(100, 3, 4)}
    new = {OTHER: Range(100, 3, 4, 0)}
    assert wanted_ranges(EMPTY, kept) == {QUEUE: Range(100, 0, 20, 0), **new}
    assert wanted_ranges(manifest(queues=[archived(12)]), kept) == {QUEUE: Range(100, 12, 20, 0), **new}
    assert wanted_ranges(manifest(queues=[archived(20)]), kept) == new
    created_again = {QUEUE: KeptQueue(900, 0, 3)}
    assert wanted_ranges(manifest(queues=[archived(20)]), created_again) == {QUEUE: Range(900, 0, 3, 0)}


def test_messages_lost_before_archiving_and_another_cluster_are_errors():
    kept, archived_before = {QUEUE: KeptQueue(100, 15, 20)}, manifest(queues=[archived(12)])
    with pytest.raises(DataLossError, match="offsets 12 to 14 of orders/broker-a/0"):
        wanted_ranges(archived_before, kept)
    assert wanted_ranges(archived_before, kept, fail_on_data_loss=False) == {QUEUE: Range(100, 15, 20, 3)}
    with pytest.raises(JobError, match="archived up to offset 20, but ends at 7: is this another cluster"):
        wanted_ranges(manifest(queues=[archived(20)]), {QUEUE: KeptQueue(100, 0, 7)})


def test_a_piece_goes_equally_far_through_every_queue():
    wanted = {QUEUE: Range(1, 0, 90, 0), OTHER: Range(1, 100, 110, 0)}
    assert at_most(wanted, 50) == {QUEUE: Range(1, 0, 45, 0), OTHER: Range(1, 100, 105, 0)}
    assert at_most(wanted, 1) == {QUEUE: Range(1, 0, 1, 0)}
    assert at_most(wanted, 100) == wanted


def test_segments_are_read_only_if_the_whole_log_is_wanted():
    kept = {QUEUE: KeptQueue(1, 0, 90), OTHER: KeptQueue(1, 7, 7)}
    assert mode_for({QUEUE: Range(1, 0, 90, 0)}, kept) == "segments"
    assert mode_for({QUEUE: Range(1, 1, 90, 0)}, kept) == "queues"
    assert mode_for({QUEUE: Range(1, 0, 90, 0)}, kept | {OTHER: KeptQueue(1, 7, 8)}) == "queues"


def test_a_topic_that_is_deleted_while_it_is_archived_fails_the_run():
    piece = {QUEUE: Range(100, 0, 20, 0)}
    check_same_topics(piece, {QUEUE: KeptQueue(100, 0, 30)})
    for kept in ({}, {QUEUE: KeptQueue(900, 0, 30)}):
        with pytest.raises(JobError, match="topic orders was deleted"):
            check_same_topics(piece, kept)


# Files that are compacted.


def test_small_files_of_one_day_are_compacted_once_and_large_ones_are_left():
    small = [file("a"), file("b"), file("c")]
    assert worthwhile([*small, file("large", size_bytes=60_000)], 100_000) == small
    assert worthwhile([file("a"), file("b")], 100_000) == []  # two tasks may share a day
    assert worthwhile([file(str(number), size_bytes=45_000) for number in range(3)], 100_000) == []


def test_a_path_without_an_archive_is_not_compacted(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "open_storage", lambda _spark, path: LocalStorage(path))
    with pytest.raises(JobError, match="there is no archive at"):
        compact(None, path=tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


# Manifests and files.


def test_a_manifest_is_read_as_it_was_committed_by_the_one_run_that_can(tmp_path):
    manifests = Manifests(LocalStorage(tmp_path))
    assert manifests.read() == EMPTY
    first = manifest(1, queues=[archived(3)], files=[file("data/run=r/topic=orders/day=2026-01-01/part-0")])
    manifests.commit(first)
    with pytest.raises(JobError, match="another run has committed version 1"):
        manifests.commit(manifest(1, files=[file("loser")]))
    assert manifests.read() == first
    manifests.commit(manifest(2))
    assert manifests.read(1) == first
    assert (manifests.read().version, manifests.versions()) == (2, [1, 2])
    with pytest.raises(JobError, match="no version 7: 1 to 2 are kept"):
        manifests.read(7)


def test_a_manifest_that_was_not_renamed_yet_is_not_there(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", dies)
        with pytest.raises(KeyboardInterrupt):
            Manifests(storage).commit(manifest(1))
    assert Manifests(storage).versions() == []


def test_the_first_manifest_is_synced_with_its_folder_and_the_parent(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("dledger_spark.jobs.storage._sync", synced.append)
    Manifests(LocalStorage(tmp_path)).commit(manifest(1))
    assert synced == [tmp_path / "manifests", tmp_path]


def test_a_manifest_of_an_unknown_format_is_refused(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.create("manifests/00000000000000000001.json", b'{"format": 2}')
    with pytest.raises(JobError):
        Manifests(storage).read()


def test_archive_files_are_listed_with_sizes_and_without_sparks_own_files(tmp_path):
    storage = LocalStorage(tmp_path)
    for name in ("data/run=1/topic=a/part", "data/run=1/_SUCCESS", "data/run=1/topic=a/.part.crc", "data/_temporary/x"):
        storage.create(name, b"abc")
    assert storage.files("data") == {"data/run=1/topic=a/part": 3}
    assert storage.names("data") == ["run=1"]
    assert (storage.names("absent"), storage.files("absent")) == ([], {})
    storage.sync(["data/run=1/topic=a/part"])
    storage.remove("data")
    storage.remove("data")
    assert storage.names("data") == []


@pytest.fixture
def local_archive(tmp_path, monkeypatch):
    monkeypatch.setattr("dledger_spark.jobs.archives.open_storage", lambda *_: LocalStorage(tmp_path))
    return Archive(object(), str(tmp_path))


def run_folder(age_seconds):
    began = datetime.fromtimestamp(time.time() - age_seconds, UTC)
    return f"data/run={began:%Y%m%dT%H%M%S}-abc"


def test_sweeping_keeps_listed_and_young_files(tmp_path, local_archive):
    storage = LocalStorage(tmp_path)
    old, dead, young = run_folder(1000), run_folder(900), run_folder(10)
    for name in (f"{old}/kept", f"{old}/replaced", f"{dead}/orphan", f"{young}/under-way", "data/notes/mine"):
        storage.create(name, b"x")
    now_ms = int(time.time() * 1000)
    local_archive.manifests.commit(
        manifest(1, files=[file(f"{old}/kept"), file(f"{old}/replaced")], committed_ms=now_ms - 950_000)
    )
    local_archive.manifests.commit(manifest(2, files=[file(f"{old}/kept")], committed_ms=now_ms - 50_000))
    assert local_archive.sweep(keep_seconds=500) == 1
    assert set(storage.files("data")) == {f"{old}/kept", f"{old}/replaced", f"{young}/under-way", "data/notes/mine"}
    assert local_archive.sweep(keep_seconds=40) == 1
    assert set(storage.files("data")) == {f"{old}/kept", f"{young}/under-way", "data/notes/mine"}
    assert local_archive.manifests.versions() == [2]


def test_leftovers_of_a_killed_commit_are_swept(tmp_path, local_archive):
    local_archive.manifests.commit(manifest(1))
    old, young = (tmp_path / "manifests" / f".{number:020d}.json.abc" for number in (2, 3))
    for path, age_seconds in ((old, 1000), (young, 10)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_seconds,) * 2)
    local_archive.sweep(keep_seconds=500)
    assert (old.exists(), young.exists(), local_archive.manifests.versions()) == (False, True, [1])


def test_a_run_whose_files_were_swept_is_not_published(tmp_path, local_archive):
    storage, folder = LocalStorage(tmp_path), run_folder(10)
    run = folder.partition("=")[2]
    storage.create(f"{folder}/part", b"x")
    latest = local_archive.publish(EMPTY, "archive", "other", [], [])
    local_archive.sweep(keep_seconds=-1)
    with pytest.raises(JobError, match="swept up"):
        local_archive.publish(latest, "archive", run, [], [file(f"{folder}/part")])
    assert local_archive.manifests.versions() == [1]
