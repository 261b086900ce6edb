"""Plans of an archive: what it adds next, what it lists, and what it may delete, without Spark."""

import os
import time
from datetime import UTC, datetime

import pytest

from dledger_spark.errors import DataLossError
from dledger_spark.jobs import archives
from dledger_spark.jobs.archives import Archive
from dledger_spark.jobs.archiving import KeptQueue, Range, at_most, check_same_topics, mode_for, wanted_ranges
from dledger_spark.jobs.compaction import compact, worthwhile
from dledger_spark.jobs.errors import JobError
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


# What is archived next.


def test_a_first_run_takes_all_that_is_kept():
    assert wanted_ranges(EMPTY, {QUEUE: KeptQueue(100, 5, 20)}) == {QUEUE: Range(100, 5, 20, 0)}


def test_the_next_run_goes_on_behind_the_last_one_and_takes_new_queues_from_their_start():
    kept = {QUEUE: KeptQueue(100, 0, 20), OTHER: KeptQueue(100, 3, 4)}
    assert wanted_ranges(manifest(queues=[archived(12)]), kept) == {
        QUEUE: Range(100, 12, 20, 0),
        OTHER: Range(100, 3, 4, 0),
    }


def test_nothing_is_wanted_of_a_queue_that_is_archived_whole():
    assert wanted_ranges(manifest(queues=[archived(20)]), {QUEUE: KeptQueue(100, 0, 20)}) == {}


def test_a_topic_that_was_created_again_is_archived_from_its_start():
    kept = {QUEUE: KeptQueue(900, 0, 3)}
    assert wanted_ranges(manifest(queues=[archived(20)]), kept) == {QUEUE: Range(900, 0, 3, 0)}


def test_messages_that_are_gone_before_they_were_archived_are_an_error_unless_that_is_allowed():
    kept = {QUEUE: KeptQueue(100, 15, 20)}
    with pytest.raises(DataLossError, match="offsets 12 to 14 of orders/broker-a/0"):
        wanted_ranges(manifest(queues=[archived(12)]), kept)
    assert wanted_ranges(manifest(queues=[archived(12)]), kept, fail_on_data_loss=False) == {
        QUEUE: Range(100, 15, 20, 3)
    }


def test_an_archive_of_another_cluster_is_not_continued():
    with pytest.raises(JobError, match="archived up to offset 20, but ends at 7: is this another cluster"):
        wanted_ranges(manifest(queues=[archived(20)]), {QUEUE: KeptQueue(100, 0, 7)})


def test_a_piece_goes_equally_far_through_every_queue():
    wanted = {QUEUE: Range(1, 0, 90, 0), OTHER: Range(1, 100, 110, 0)}
    assert at_most(wanted, 50) == {QUEUE: Range(1, 0, 45, 0), OTHER: Range(1, 100, 105, 0)}
    assert at_most(wanted, 1) == {QUEUE: Range(1, 0, 1, 0)}
    assert at_most(wanted, 100) == wanted


def test_the_log_itself_is_read_only_if_all_of_it_is_wanted():
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


# Which files are compacted.


def test_small_files_of_one_day_are_compacted_and_large_ones_are_left():
    files = [file("a"), file("b"), file("c"), file("large", size_bytes=900), file("else", day="2026-01-02")]
    small = [one for one in files if one.path in ("a", "b", "c")]
    assert worthwhile([*small, file("large", size_bytes=60_000)], 100_000) == small


def test_a_path_without_an_archive_is_not_compacted(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "open_storage", lambda _spark, path: LocalStorage(path))
    with pytest.raises(JobError, match="there is no archive at"):
        compact(None, path=tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def test_what_compaction_has_written_is_not_compacted_again():
    assert worthwhile([file("a"), file("b")], 100_000) == []  # two tasks may share a day
    assert worthwhile([file(str(number), size_bytes=45_000) for number in range(3)], 100_000) == []


# Manifests and files.


def test_a_manifest_is_read_as_it_was_committed(tmp_path):
    manifests = Manifests(LocalStorage(tmp_path))
    assert manifests.read() == EMPTY
    first = manifest(1, queues=[archived(3)], files=[file("data/run=r/topic=orders/day=2026-01-01/part-0")])
    manifests.commit(first)
    manifests.commit(manifest(2))
    assert manifests.read(1) == first
    assert (manifests.read().version, manifests.versions()) == (2, [1, 2])
    with pytest.raises(JobError, match="no version 7: 1 to 2 are kept"):
        manifests.read(7)


def test_of_two_runs_one_commits_a_version_and_the_other_fails(tmp_path):
    manifests = Manifests(LocalStorage(tmp_path))
    manifests.commit(manifest(1, files=[file("winner")]))
    with pytest.raises(JobError, match="another run has committed version 1"):
        manifests.commit(manifest(1, files=[file("loser")]))
    assert [one.path for one in manifests.read().files] == ["winner"]


def test_a_manifest_that_was_not_renamed_yet_is_not_there(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    killed = KeyboardInterrupt()

    def dies(*_):
        raise killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", dies)
        with pytest.raises(KeyboardInterrupt):
            Manifests(storage).commit(manifest(1))
    assert Manifests(storage).versions() == []


def test_the_first_manifest_is_durable_with_the_folder_that_it_lies_in(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("dledger_spark.jobs.storage._sync", synced.append)
    Manifests(LocalStorage(tmp_path)).commit(manifest(1))
    assert synced == [tmp_path / "manifests", tmp_path]


def test_a_manifest_of_an_unknown_format_is_refused(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.create("manifests/00000000000000000001.json", b'{"format": 2}')
    with pytest.raises(JobError):
        Manifests(storage).read()


def test_files_are_listed_with_their_sizes_and_without_those_of_spark_itself(tmp_path):
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


class _NoSpark:
    """Local storage without a session."""


@pytest.fixture
def local_archive(tmp_path, monkeypatch):
    monkeypatch.setattr("dledger_spark.jobs.archives.open_storage", lambda *_: LocalStorage(tmp_path))
    return Archive(_NoSpark(), str(tmp_path))


def run_folder(age_seconds):
    began = datetime.fromtimestamp(time.time() - age_seconds, UTC)
    return f"data/run={began:%Y%m%dT%H%M%S}-abc"


def test_sweeping_keeps_what_is_listed_and_what_is_young(tmp_path, local_archive):
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


def test_a_run_that_was_swept_up_while_it_wrote_is_not_published(tmp_path, local_archive):
    storage, folder = LocalStorage(tmp_path), run_folder(10)
    run = folder.partition("=")[2]
    storage.create(f"{folder}/part", b"x")
    latest = local_archive.publish(EMPTY, "archive", "other", [], [])
    local_archive.sweep(keep_seconds=-1)
    with pytest.raises(JobError, match="swept up"):
        local_archive.publish(latest, "archive", run, [], [file(f"{folder}/part")])
    assert local_archive.manifests.versions() == [1]
