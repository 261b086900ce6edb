"""A snapshot goes from one store to another, piece by piece."""

from __future__ import annotations

import errno
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_group import Group, Journal, has_trimmed, until

from dledger.core.messages import InstallSnapshot
from dledger.errors import CorruptionError, LogError, LogFullError, StorageError
from dledger.replica.transfer import (
    SNAPSHOT_CHANNEL,
    STALLED_S,
    WINDOW_CHUNKS,
    Received,
    SnapshotReceiver,
    SnapshotSender,
)
from dledger.store import snapshots
from dledger.store.disk import OsDisk
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk
from dledger.types import Membership, ReplicaId, SnapshotMeta
from tests.dledger.fake_driver import FakeDriver

A, B = ReplicaId("a", "1"), ReplicaId("b", "1")
META = SnapshotMeta(4096, 17, 3, 99, Membership((A, B)))
CONTENT = bytes(range(256)) * 4000


class AtOnce:
    """The environment and the transport of a sender: what it hands over has arrived."""

    def __init__(self, target: SnapshotStore) -> None:
        self.driver = FakeDriver()
        self.failures = self.driver.failures
        self.target = target
        self.receiver = self.receiver_on(self)
        self.answers: list[SnapshotMeta | BaseException] = []
        self.states: list[bytes] = []
        self.sender: SnapshotSender | None = None

    def receiver_on(self, environment) -> SnapshotReceiver:
        store = SimpleNamespace(files=self, snapshots=self.target)
        return SnapshotReceiver(environment, self, store, self, self.driver, taken=self.take)

    def take(self, receiver: ReplicaId, data: bytes) -> None:
        """What the receiver answers, as a leader's replica does."""
        assert receiver == A
        assert self.sender is not None
        self.sender.on_data(data)

    def decode(self, meta: SnapshotMeta) -> Callable[[], int]:
        """A machine's state is the bytes themselves."""
        content = b"".join(self.target.read_chunks(meta))

        def restore() -> int:
            self.states.append(content)
            return meta.position

        return restore

    def prepare_reset(self, meta: SnapshotMeta) -> None:
        """There is space."""

    def now(self) -> float:
        return 0.0

    def call_soon(self, callback) -> None:
        callback()

    def run_blocking(self, lane, work, done) -> None:
        try:
            result = work()
        except LogError as error:
            result = error
        done(result)

    def queued_bytes(self, node_id, lane) -> int:
        return 0

    def send_data(self, node_id, channel, pieces) -> bool:
        assert channel == SNAPSHOT_CHANNEL
        self.receiver.on_data(A, b"".join(pieces))
        return True

    def send(self, node_id, lane, message: InstallSnapshot) -> bool:
        self.receiver.finish(A, message.snapshot, self.answer)
        return True

    def answer(self, result: Received | BaseException) -> None:
        if isinstance(result, Received):
            assert result.restore() == result.meta.position
            result = result.meta
        self.answers.append(result)


class Busy(AtOnce):
    """The same where the receiver's worker does nothing before it is told to."""

    def __init__(self, target: SnapshotStore) -> None:
        super().__init__(target)
        self.works: deque[Callable[[], None]] = deque()
        self.receiver = self.receiver_on(_Lane(self.works))


class _Lane:
    def __init__(self, works: deque[Callable[[], None]]) -> None:
        self._works = works

    def run_blocking(self, lane, work, done) -> None:
        self._works.append(lambda: AtOnce.run_blocking(self, lane, work, done))


class Timed(Busy):
    """The same with a clock, and with an event loop that takes one thing after the other."""

    def __init__(self, target: SnapshotStore) -> None:
        super().__init__(target)
        self.clock_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.sent = self.written = self.most_unwritten = 0

    def now(self) -> float:
        return self.clock_s

    def call_soon(self, callback) -> None:
        self.due.append((self.clock_s, callback))

    def call_later(self, delay_s, callback) -> None:
        self.due.append((self.clock_s + delay_s, callback))

    def send_data(self, node_id, channel, pieces) -> bool:
        kind, number = pieces[0][0], int.from_bytes(pieces[0][9:13], "big")
        if kind == 1:
            self.sent = number + 1
        elif kind == 3:
            self.written = number
        self.most_unwritten = max(self.most_unwritten, self.sent - self.written)
        return super().send_data(node_id, channel, pieces)

    def run_until(self, moment_s: float) -> None:
        """Let time pass; the receiver's worker stands still meanwhile."""
        while self.due:
            at, callback = following = min(self.due, key=lambda one: one[0])
            if at > moment_s:
                break
            self.due.remove(following)
            self.clock_s = max(self.clock_s, at)
            callback()
        self.clock_s = moment_s


def send(wire: AtOnce, chunk_bytes: int = snapshots.CHUNK_BYTES, **changes: Callable[[], object]) -> None:
    source = SnapshotStore.open(SimDisk())
    source.chunk_bytes = chunk_bytes
    writer = source.begin(META)
    writer.write(CONTENT)
    writer.commit()
    ignored = {"still_wanted": lambda: True, "sent": lambda: None, "broken": lambda: None, "rotten": lambda: None}
    wire.sender = SnapshotSender(wire, wire, source, B, META, InstallSnapshot.of(3, META), **{**ignored, **changes})
    wire.sender.start()


def transfer(target: SnapshotStore) -> SnapshotMeta | BaseException:
    wire = AtOnce(target)
    send(wire)
    (answer,) = wire.answers
    return answer


def test_a_snapshot_arrives_as_it_was_sent():
    target = SnapshotStore.open(SimDisk())
    wire = AtOnce(target)
    send(wire)
    assert wire.answers == [META]
    assert wire.states == [CONTENT] == [b"".join(target.read_chunks(META))]


def test_a_snapshot_whose_state_cannot_be_read_is_not_asked_for_again_and_again(monkeypatch):
    """It is whole, but of a version to come: this replica ends, and says why."""

    def decode(_wire: AtOnce, meta: SnapshotMeta) -> None:
        raise CorruptionError("it has format 2, expected 1")

    monkeypatch.setattr(AtOnce, "decode", decode)
    answer = transfer(SnapshotStore.open(SimDisk()))
    assert isinstance(answer, StorageError)
    assert "format 2" in str(answer)


def test_a_snapshot_arrives_whole_while_the_disk_stands_still_and_is_answered_once_it_is_durable():
    disk = SimDisk()
    target = SnapshotStore.open(disk)
    wire = Busy(target)
    send(wire)
    assert (wire.answers, disk.listdir("snapshots")) == ([], [])
    while wire.works:
        assert wire.answers == []
        wire.works.popleft()()
    assert wire.answers == target.list() == [META]
    assert b"".join(target.read_chunks(META)) == CONTENT


def test_what_waits_for_a_slow_disk_of_the_receiver_is_bounded():
    """However large the snapshot is: nobody holds more of it in memory than a window."""
    target = SnapshotStore.open(SimDisk())
    wire = Timed(target)
    send(wire, chunk_bytes=1000)
    while not wire.answers:
        wire.run_until(wire.clock_s + 1.0)
        assert wire.sent - wire.written <= WINDOW_CHUNKS
        wire.works.popleft()()
    assert wire.answers == target.list() == [META]
    assert wire.most_unwritten == WINDOW_CHUNKS
    assert b"".join(target.read_chunks(META)) == CONTENT


def test_a_receiver_that_writes_nothing_more_is_given_up():
    """Its disk has failed, or it has dropped the transfer: the leader starts over."""
    wire = Timed(SnapshotStore.open(SimDisk()))
    broken: list[float] = []
    send(wire, chunk_bytes=1000, broken=lambda: broken.append(wire.clock_s))
    wire.run_until(STALLED_S / 2)
    wire.works.popleft()()
    wire.run_until(STALLED_S * 1.4)
    assert broken == [], "it has written something since"
    wire.run_until(STALLED_S * 3)
    assert len(broken) == 1
    assert wire.due == [], "and nothing goes on"


@pytest.mark.parametrize("reading", [False, True], ids=["between two reads", "while it is read"])
@pytest.mark.parametrize("given_up", ["by the leader", "by its stop"])
def test_the_file_of_a_transfer_that_is_given_up_is_closed_by_a_worker(monkeypatch, reading, given_up):
    """Closing it gives back the space of a snapshot that a trim has unlinked, which may take long."""
    wire, wanted = Timed(SnapshotStore.open(SimDisk())), [True]
    works: deque[Callable[[], None]] = deque()
    monkeypatch.setattr(wire, "run_blocking", _Lane(works).run_blocking)
    send(wire, chunk_bytes=1000, still_wanted=lambda: wanted[0])
    wire.run_until(1.0)
    works.popleft()()
    if reading:
        wire.run_until(2.0)
    wanted[0] = False
    if given_up == "by its stop":
        wire.sender.stop()
    wire.run_until(3.0)
    assert wire.sender._chunks.gi_frame is not None, "the event loop has not closed it"
    while works:
        works.popleft()()
        wire.run_until(wire.clock_s + 1.0)
    assert wire.sender._chunks.gi_frame is None


@pytest.mark.parametrize("done", range(4))
def test_a_transfer_that_is_begun_anew_replaces_one_whose_pieces_still_wait(monkeypatch, done):
    """The leader starts over when the connection does; the worker may be anywhere in the first one then."""
    disk = SimDisk()
    target = SnapshotStore.open(disk)
    wire = Busy(target)
    with monkeypatch.context() as patch:
        patch.setattr(AtOnce, "send", lambda *_: True)
        send(wire)
    for _ in range(done):
        if wire.works:
            wire.works.popleft()()
    send(wire)
    while wire.works:
        wire.works.popleft()()
    assert wire.answers == target.list() == [META]
    assert b"".join(target.read_chunks(META)) == CONTENT
    assert disk.listdir("snapshots") == [f"{META.position:020d}"]


@pytest.mark.parametrize("installed", [False, True])
def test_a_receiver_whose_disk_fails_says_so_once(monkeypatch, installed):
    """To whoever asked for the installation, or to the replica, which ends."""
    disk = SimDisk()
    target = SnapshotStore.open(disk)
    wire = Busy(target)
    if not installed:
        monkeypatch.setattr(AtOnce, "send", lambda *_: True)
    send(wire)
    disk.fail(lambda operation, _path: operation == "pwrite")
    while wire.works:
        wire.works.popleft()()
    errors = [*wire.failures, *wire.answers]
    assert [type(error) for error in errors] == [StorageError]
    assert len(wire.answers) == int(installed)
    assert disk.listdir("snapshots") == []


def test_a_receiver_without_space_waits_for_the_next_transfer():
    disk = SimDisk()
    target = SnapshotStore.open(disk)
    wire = Busy(target)
    send(wire)
    disk.fail(lambda operation, _path: operation == "reserve", errno.ENOSPC)
    while wire.works:
        wire.works.popleft()()
    assert ([type(answer) for answer in wire.answers], wire.failures) == ([LogFullError], [])
    assert disk.listdir("snapshots") == []
    send(wire)
    while wire.works:
        wire.works.popleft()()
    assert wire.answers[1:] == target.list() == [META]


def test_a_snapshot_that_rots_as_it_is_written_is_not_listed():
    class RottingDisk(SimDisk):
        def sync_dir(self, path: str) -> None:
            super().sync_dir(path)
            self.flip_bit(f"snapshots/{META.position:020d}", 8 * 5000)

    disk = RottingDisk()
    target = SnapshotStore.open(disk)
    assert isinstance(transfer(target), CorruptionError)
    assert target.list() == SnapshotStore.open(disk).list() == []


def test_a_snapshot_that_could_not_be_installed_for_lack_of_space_is_not_listed(monkeypatch):
    """A reset of the log that has begun cannot be refused any more, so what it needs is taken before."""

    def prepare_reset(_wire: AtOnce, meta: SnapshotMeta) -> None:
        assert meta == META
        raise LogFullError("no space to reset the log")

    monkeypatch.setattr(AtOnce, "prepare_reset", prepare_reset)
    target = SnapshotStore.open(SimDisk())
    assert isinstance(transfer(target), LogFullError)
    assert target.list() == []


@pytest.mark.parametrize("field", ["last_index", "last_term"])
def test_a_snapshot_that_is_not_the_one_announced_is_not_listed(monkeypatch, field):
    announce = AtOnce.send
    other = {"last_index": InstallSnapshot(3, 4096, 18, 3, 99, META.membership, -1)}
    other["last_term"] = InstallSnapshot(3, 4096, 17, 2, 99, META.membership, -1)
    monkeypatch.setattr(
        AtOnce, "send", lambda wire, node_id, lane, _message: announce(wire, node_id, lane, other[field])
    )
    target = SnapshotStore.open(SimDisk())
    assert isinstance(transfer(target), CorruptionError)
    assert target.list() == []


async def test_a_state_that_was_sent_is_decoded_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    threads: list[bool] = []
    decode = Journal.decode

    def observed(self, meta, chunks):
        threads.append(threading.current_thread() is threading.main_thread())
        return decode(self, meta, chunks)

    group = Group(tmp_path)
    try:
        await group.start()
        await group.append(10)
        await group.settled()
        leader = await group.leader()
        late = next(node_id for node_id in group.ids if group.nodes[node_id] is not leader)
        await group.stop(late)
        shutil.rmtree(group.home(late))
        await group.append_until_trimmable(1)
        leader = await group.leader()
        assert leader.trim(group.trim_candidates()[-1])
        await until(lambda: leader.first_position > 0, "a trim")
        monkeypatch.setattr(Journal, "decode", observed)
        await group.start(late)
        await until(lambda: len(threads) > 1, "an installation")
        await group.settled()
        assert threads == [True, False], "at the start the initial state, then that of a snapshot"
        assert group.same_state()
    finally:
        await group.stop()


async def test_a_node_gets_another_snapshot_if_the_leaders_first_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    group = Group(tmp_path)
    try:
        await group.start()
        await group.append(10)
        await group.settled()
        leader = await group.leader()
        late = next(node_id for node_id in group.ids if group.nodes[node_id] is not leader)
        await group.stop(late)
        await group.append_until_trimmable(2)
        position = group.trim_candidates()[0]
        leader = await group.leader()
        assert leader.trim(position)
        await until(lambda: has_trimmed(leader, position), "a trim")
        home, read_data = str(group.home(leader.config.node_id)), snapshots._read_data

        def fail_to_read(disk: OsDisk, meta: SnapshotMeta, path: str = "") -> Iterator[memoryview]:
            if (disk.root, meta.position, path) == (home, position, ""):
                raise StorageError(f"reading failed: {OSError(errno.EIO, 'Input/output error')}")
            yield from read_data(disk, meta, path)

        monkeypatch.setattr(snapshots, "_read_data", fail_to_read)
        await group.start(late)
        await group.settled()
        assert group.nodes[late].first_position > position
        assert group.same_state()
        assert leader.status().failure is None
    finally:
        await group.stop()
