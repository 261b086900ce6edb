import hashlib
import random

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, synced_log

from dledger.errors import IdentityError
from dledger.store.segments import segment_path
from dledger.store.verify import VerifyReport, compare, inspect, verify
from dledger.testing.disk import SimDisk


def closed_log(seed: int = 1, count: int = 40, committed: int = 34) -> LoggedModel:
    model = synced_log(SimDisk(random.Random(1)), count, seed=seed)
    model.log.save_commit(committed)
    model.log.close()
    return model


def trimmed_log(position: int) -> LoggedModel:
    """Return a closed log with a snapshot at two segments, one of which begins the log."""
    model = closed_log()
    model.open()
    model.snapshot(SEGMENT_BYTES)
    model.snapshot(2 * SEGMENT_BYTES)
    model.trim(position)
    model.log.close()
    return model


def report_of(model: LoggedModel) -> VerifyReport:
    return verify("n0", disk=model.disk)


def test_an_intact_log_is_described():
    model = closed_log()
    report = report_of(model)
    end = model.entries[34][0].end
    assert report.problems == []
    assert (report.directory, report.segment_bytes, report.segments) == ("n0", SEGMENT_BYTES, 5)
    assert (report.first_index, report.last_index, report.entries) == (0, 39, 40)
    assert (report.first_position, report.end_position) == (0, model.entries[-1][0].end)
    assert (report.commit_index, report.committed_position) == (34, end)
    assert report.sha256 == hashlib.sha256(model.committed_bytes(0, end)).hexdigest()


def test_an_empty_log_is_described():
    model = synced_log(count=0)
    model.log.close()
    report = report_of(model)
    assert (report.last_index, report.committed_position, report.problems) == (-1, 0, [])


def test_a_directory_that_is_no_nodes_is_refused():
    with pytest.raises(IdentityError, match=r"n0 holds no node: there is no identity\.json"):
        verify("n0", disk=SimDisk())


def test_a_trimmed_log_is_verified_from_its_snapshot():
    model = trimmed_log(2 * SEGMENT_BYTES)
    report = report_of(model)
    assert report.problems == []
    assert (report.first_position, report.last_index) == (2 * SEGMENT_BYTES, 39)
    expected = model.committed_bytes(2 * SEGMENT_BYTES, model.entries[34][0].end)
    assert report.sha256 == hashlib.sha256(expected).hexdigest()


def test_a_trimmed_snapshot_that_reappears_is_ignored():
    path = f"snapshots/{SEGMENT_BYTES:020d}"
    source = trimmed_log(SEGMENT_BYTES).disk.open(path)
    model = trimmed_log(2 * SEGMENT_BYTES)
    assert not model.disk.exists(path)
    model.disk.open(path, create=True).pwrite(source.pread(source.size(), 0), 0)
    report = report_of(model)
    assert report.problems == []
    assert (report.first_position, report.last_index) == (2 * SEGMENT_BYTES, 39)


@pytest.mark.parametrize("log", [closed_log, lambda: trimmed_log(SEGMENT_BYTES)], ids=["inner", "oldest"])
def test_a_missing_segment_is_a_problem(log):
    model = log()
    model.disk.unlink(segment_path(SEGMENT_BYTES))
    (problem,) = report_of(model).problems
    assert "is missing" in problem


def test_every_flipped_bit_of_a_committed_byte_is_found():
    model = synced_log(count=0, segment_bytes=512)
    model.fill(random.Random(1), 10, largest=80)
    model.log.save_commit(7)
    model.sim.kill()
    end = model.entries[7][0].end
    assert end > 512, "a blank is among them"
    for bit in range(8 * end):
        model.flip(bit // 8, bit % 8)
        assert report_of(model).problems, bit
        model.flip(bit // 8, bit % 8)
    assert report_of(model).problems == []


def test_a_torn_end_above_commit_and_mark_is_no_problem():
    model = synced_log(count=10)
    model.fill(random.Random(2), 5)
    model.flip(model.entries[12][0].position)
    report = report_of(model)
    assert (report.last_index, report.problems) == (11, [])


def test_a_lost_mark_and_a_snapshot_of_another_history_are_problems():
    model = closed_log()
    model.open()
    model.snapshot(SEGMENT_BYTES)
    model.log.close()
    other = closed_log(seed=2)
    other.disk.mkdir("snapshots")
    source = model.disk.open(f"snapshots/{SEGMENT_BYTES:020d}")
    other.disk.open(f"snapshots/{SEGMENT_BYTES:020d}", create=True).pwrite(source.pread(source.size(), 0), 0)
    other.disk.unlink("raft/mark")
    problems = report_of(other).problems
    assert len(problems) == 2
    assert "mark" in problems[0]
    assert f"the snapshot at {SEGMENT_BYTES} says" in problems[1]


def test_equal_logs_compare_equal_up_to_the_common_commit():
    models = [closed_log(committed=committed) for committed in (34, 20, 39)]
    reports = [verify(f"n{number}", disk=model.disk) for number, model in enumerate(models)]
    comparison = compare(reports, disks=[model.disk for model in models])
    assert comparison.equal
    assert (comparison.first_position, comparison.end_position) == (0, models[0].entries[20][0].end)


def test_different_logs_compare_different_at_the_first_byte_that_is():
    one, other = closed_log(), closed_log(seed=2)
    reports = [verify("n0", disk=one.disk), verify("n1", disk=other.disk)]
    comparison = compare(reports, disks=[one.disk, other.disk])
    ours, others = (model.committed_bytes(0, 3000) for model in (one, other))
    expected = next(at for at in range(3000) if ours[at] != others[at])
    assert (comparison.equal, comparison.first_difference) == (False, expected)


def test_entries_are_listed_from_an_index_on():
    model = closed_log()
    metas = [meta for meta, _ in model.entries]
    assert list(inspect("n0", disk=model.disk)) == metas
    assert list(inspect("n0", 7, 20, disk=model.disk)) == metas[7:27]
    assert list(inspect("n0", 100, 5, disk=model.disk)) == []
