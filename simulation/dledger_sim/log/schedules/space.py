"""Schedules written by hand for space reserved ahead: the file of the next segment, and entries that wait for space."""

from itertools import permutations
from random import Random

from dledger.errors import StorageError
from dledger.format import HEADER_BYTES, seal
from dledger.testing.disk import SimDisk
from dledger.types import EntryKind, Membership, SnapshotMeta
from dledger_sim.log.schedules.disk import SEGMENT_BYTES, DiskLog
from dledger_sim.log.schedules.group import running_group, until


def void_entries_behind_rewritten_ones() -> None:
    """Check that void entries behind rewritten entries do not come back.

    A truncation takes a segment off the log. The last entry that is left is then cut off too and written again, byte
    for byte. The void entries of the segment would continue its chain.

    Seeds rarely have an entry that ends exactly with its segment, and a cut right behind it in a segment that was just
    begun.
    """
    log = DiskLog(SimDisk(Random(1)))
    log.append(20, term=1)
    log.append(1, term=1, body_bytes=SEGMENT_BYTES - log.store.end_position - HEADER_BYTES)
    boundary = log.store.last_index + 1
    log.append(3, term=1)
    again = log.store.meta(boundary - 1)
    data = log.store.read(again.position, again.size)
    log.sync()
    log.store.take_cut(log.store.cut(boundary - 1))
    assert log.store.claim([again])
    log.store.append([again], data)
    log.sync()
    log.disk.kill()
    log.open()
    assert log.recovery.last_index == boundary - 1


def recycling_while_the_log_goes_on() -> None:
    """Check that recycling a segment leaves the entries of a growing log in place.

    A worker gives a trimmed segment the name of the next segment. Just before that the log grows as far as it may.
    Seeds would have to fill a segment between two calls of a worker, once per trim.
    """
    log = DiskLog(SimDisk(Random(1)))
    while log.store.end_position < 2.8 * SEGMENT_BYTES:  # the next segment exists by then
        log.append(1, term=1)
    log.sync()
    indexes = range(log.store.last_index)
    before = log.store.meta(next(index for index in indexes if log.store.position_at(index) == SEGMENT_BYTES) - 1)
    snapshot = SnapshotMeta(SEGMENT_BYTES, before.index, before.term, before.chain_crc, Membership())
    log.store.snapshots.begin(snapshot).commit()
    log.store.trim(SEGMENT_BYTES)
    log.store.sync_mark()
    grown: list[int] = []

    def grow(operation: str, _path: str) -> None:
        if operation == "rename" and not grown:
            grown.append(_grow(log))

    log.disk.entered = grow
    log.store.remove_trimmed()
    log.disk.entered = None
    assert grown, "a segment was recycled"
    try:
        log.append(60, term=1)
    except StorageError as error:
        raise AssertionError("its file is gone") from error
    log.sync()
    last = log.store.last_index
    log.disk.kill()
    log.open()
    assert (log.recovery.last_index, log.recovery.corrupt_ranges) == (last, [])


def _grow(log: DiskLog) -> int:
    """Append as an event loop does, until entries would have to wait for space.

    Return the number of entries appended.
    """
    store = log.store
    for count in range(100):
        entry = bytearray(HEADER_BYTES + 100)
        place = store.next_position(len(entry))
        meta = seal(entry, EntryKind.GROUP, store.last_index + 1, 1, place, 0, store.last_chain)
        if not store.claim([meta], privileged=True):
            return count
        store.append([meta], entry)
    return 100


def _claim_nothing(_metas: object, **_: object) -> bool:
    return False


def leadership_lost_while_entries_wait_for_space() -> None:
    """Check a leader that is deposed while its entries wait for space.

    They are dropped, and not proposed in a later term.

    Workers of seeds are rarely slow enough for a leader to be deposed in this time.
    """
    group, workload = running_group()
    leader = group.leader
    assert leader is not None
    assert leader.replica is not None
    store, term = leader.replica.store, leader.replica.engine.term
    setattr(store, "claim", _claim_nothing)  # noqa: B010 - a method is replaced for a while
    group.scheduler.run_until(group.scheduler.now + 0.3)
    assert leader.replica.leading.end_position > store.end_position
    links = [link for link in permutations(group.settings.names, 2) if leader.name in link]
    for link in links:
        group.network.block(*link)
    until(group, lambda: group.leader not in (None, leader), 5.0)
    workload.stop()
    group.scheduler.run_until(group.scheduler.now + 1.0)
    delattr(store, "claim")
    for link in links:
        group.network.unblock(*link)
    until(group, group.healthy, 10.0)
    new = group.leader
    assert new is not None
    assert new.replica is not None
    new.replica.transfer(leader.replica.me)
    until(group, lambda: group.leader is leader and group.healthy(), 10.0)
    assert leader.replica.engine.term > term


SPACE_SCHEDULES = (
    void_entries_behind_rewritten_ones,
    recycling_while_the_log_goes_on,
    leadership_lost_while_entries_wait_for_space,
)
