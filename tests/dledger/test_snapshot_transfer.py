"""A snapshot goes from one store to another, piece by piece."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_group import Group, Journal, until

from dledger.core.messages import InstallSnapshot
from dledger.errors import CorruptionError, LogError, LogFullError, StorageError
from dledger.replica.peers import outbox
from dledger.replica.snapshots import sending as transfers
from dledger.replica.snapshots.sending import Received, SnapshotReceiver, SnapshotSender
from dledger.store import snapshots
from dledger.store.disk import OsDisk
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk
from dledger.types import Membership, ReplicaId, SnapshotMeta
from tests.dledger.fake_driver import FakeDriver, HeldWork

A, B = ReplicaId("a", "1"), ReplicaId("b", "1")
META = SnapshotMeta(4096, 17, 3, 99, Membership((A, B)))
CONTENT = bytes(range(256)) * 4000


class AtOnce:
    """Environment and transport of a sender. Messages arrive at once."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.driver = FakeDriver()
        self.failures = self.driver.failures
        self.disk = disk or SimDisk()
        self.target = SnapshotStore.open(self.disk)
        self.receiver = self.receiver_on(self)
        self.answers: list[SnapshotMeta | BaseException] = []
        self.states: list[bytes] = []
        self.sender: SnapshotSender | None = None

    def receiver_on(self, environment) -> SnapshotReceiver:
        store = SimpleNamespace(files=self, snapshots=self.target)
        return SnapshotReceiver(environment, self, store, self, self.driver, on_taken=self.take)

    def take(self, receiver: ReplicaId, data: bytes) -> None:
        """Give the receiver's answer to the sender, as a leader's replica does."""
        assert receiver == A
        assert self.sender is not None
        self.sender.on_data(data)

    def decode(self, meta: SnapshotMeta) -> Callable[[], int]:
        """Return the state, which is the bytes themselves."""
        content = b"".join(self.target.read_chunks(meta))

        def restore() -> int:
            self.states.append(content)
            return meta.position

        return restore

    def prepare_reset(self, meta: SnapshotMeta) -> None:
        """Do nothing: there is space."""

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
        assert channel == transfers.SNAPSHOT_CHANNEL
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
    """`AtOnce` whose receiver's worker works when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = HeldWork()
        self.receiver = self.receiver_on(self.worker)


class Timed(Busy):
    """`Busy` with a clock and an event loop that runs callbacks in order of time."""

    def __init__(self) -> None:
        super().__init__()
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
        """Let time pass. The receiver's worker does nothing meanwhile."""
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
    ignored = {"is_wanted": lambda: True, "on_sent": lambda: None, "on_broken": lambda: None, "on_rotten": lambda: None}
    wire.sender = SnapshotSender(wire, wire, source, B, META, InstallSnapshot.of(3, META), **{**ignored, **changes})
    wire.sender.start()


def transfer(disk: SimDisk | None = None) -> tuple[SnapshotMeta | BaseException, list[SnapshotMeta]]:
    """Send a snapshot. Return the answer, and the snapshots that the target lists."""
    wire = AtOnce(disk)
    send(wire)
    (answer,) = wire.answers
    return answer, wire.target.list()


def test_a_snapshot_arrives_as_it_was_sent():
    wire = AtOnce()
    send(wire)
    assert wire.answers == [META]
    assert wire.states == [CONTENT] == [b"".join(wire.target.read_chunks(META))]


def test_a_snapshot_of_an_unknown_format_ends_the_transfer_with_an_error(monkeypatch):
    """The snapshot is whole but from a later version. This replica ends and says why."""

    def decode(_wire: AtOnce, meta: SnapshotMeta) -> None:
        raise CorruptionError("it has format 2, expected 1")

    monkeypatch.setattr(AtOnce, "decode", decode)
    answer, _ = transfer()
    assert isinstance(answer, StorageError)
    assert "format 2" in str(answer)


def test_a_snapshot_is_answered_only_once_a_stalled_disk_made_it_durable():
    wire = Busy()
    send(wire)
    assert (wire.answers, wire.disk.listdir("snapshots")) == ([], [])
    while wire.worker.given:
        assert wire.answers == []
        wire.worker.work_once()
    assert wire.answers == wire.target.list() == [META]
    assert b"".join(wire.target.read_chunks(META)) == CONTENT


def test_snapshot_chunks_that_wait_for_a_slow_receiver_are_limited():
    """The snapshot may be large, but no node holds more of it in memory than a window."""
    wire = Timed()
    send(wire, chunk_bytes=1000)
    while not wire.answers:
        wire.run_until(wire.clock_s + 1.0)
        assert wire.sent - wire.written <= transfers.WINDOW_CHUNKS
        wire.worker.work_once()
    assert wire.answers == wire.target.list() == [META]
    assert wire.most_unwritten == transfers.WINDOW_CHUNKS
    assert b"".join(wire.target.read_chunks(META)) == CONTENT


def test_a_receiver_that_writes_nothing_more_is_given_up():
    """The receiver's disk has failed, or the receiver has dropped the transfer. The leader starts over."""
    wire = Timed()
    broken: list[float] = []
    send(wire, chunk_bytes=1000, on_broken=lambda: broken.append(wire.clock_s))
    wire.run_until(transfers.STALLED_S / 2)
    wire.worker.work_once()
    wire.run_until(transfers.STALLED_S * 1.4)
    assert broken == [], "it has written something since"
    wire.run_until(transfers.STALLED_S * 3)
    assert len(broken) == 1
    assert wire.due == [], "and nothing goes on"


@pytest.mark.parametrize("reading", [False, True], ids=["between two reads", "while it is read"])
@pytest.mark.parametrize("given_up", ["by the leader", "by its stop"])
def test_the_file_of_a_transfer_that_is_given_up_is_closed_by_a_worker(monkeypatch, reading, given_up):
    """Closing the file frees the space of a snapshot that a trim has unlinked, which may take long."""
    wire, wanted = Timed(), [True]
    reader = HeldWork()
    monkeypatch.setattr(wire, "run_blocking", reader.run_blocking)
    send(wire, chunk_bytes=1000, is_wanted=lambda: wanted[0])
    wire.run_until(1.0)
    reader.work_once()
    if reading:
        wire.run_until(2.0)
    wanted[0] = False
    if given_up == "by its stop":
        wire.sender.stop()
    wire.run_until(3.0)
    assert wire.sender._chunks.gi_frame is not None, "the event loop has not closed it"
    while reader.given:
        reader.work_once()
        wire.run_until(wire.clock_s + 1.0)
    assert wire.sender._chunks.gi_frame is None


@pytest.mark.parametrize("done", range(4))
def test_a_restarted_snapshot_transfer_replaces_the_pending_one(monkeypatch, done):
    """A new connection makes the leader start over. The worker may be at any point of the first transfer then."""
    wire = Busy()
    with monkeypatch.context() as patch:
        patch.setattr(AtOnce, "send", lambda *_: True)
        send(wire)
    for _ in range(done):
        if wire.worker.given:
            wire.worker.work_once()
    send(wire)
    wire.worker.work_all()
    assert wire.answers == wire.target.list() == [META]
    assert b"".join(wire.target.read_chunks(META)) == CONTENT
    assert wire.disk.listdir("snapshots") == [f"{META.position:020d}"]


@pytest.mark.parametrize("installed", [False, True])
def test_a_receiver_whose_disk_fails_says_so_once(monkeypatch, installed):
    """The error goes to the caller that requested the installation, or to the replica, which ends."""
    wire = Busy()
    if not installed:
        monkeypatch.setattr(AtOnce, "send", lambda *_: True)
    send(wire)
    wire.disk.fail(lambda operation, _path: operation == "pwrite")
    wire.worker.work_all()
    errors = [*wire.failures, *wire.answers]
    assert [type(error) for error in errors] == [StorageError]
    assert len(wire.answers) == int(installed)
    assert wire.disk.listdir("snapshots") == []


def test_a_receiver_without_space_waits_for_the_next_transfer():
    wire = Busy()
    send(wire)
    wire.disk.fail(lambda operation, _path: operation == "reserve", errno.ENOSPC)
    wire.worker.work_all()
    assert ([type(answer) for answer in wire.answers], wire.failures) == ([LogFullError], [])
    assert wire.disk.listdir("snapshots") == []
    send(wire)
    wire.worker.work_all()
    assert wire.answers[1:] == wire.target.list() == [META]


def test_a_snapshot_that_rots_as_it_is_written_is_not_listed():
    class RottingDisk(SimDisk):
        def sync_dir(self, path: str) -> None:
            super().sync_dir(path)
            self.flip_bit(f"snapshots/{META.position:020d}", 8 * 5000)

    disk = RottingDisk()
    answer, listed = transfer(disk)
    assert isinstance(answer, CorruptionError)
    assert listed == SnapshotStore.open(disk).list() == []


def test_a_snapshot_that_could_not_be_installed_for_lack_of_space_is_not_listed(monkeypatch):
    """A reset of the log cannot be refused once it has begun, so its space is reserved before."""

    def prepare_reset(_wire: AtOnce, meta: SnapshotMeta) -> None:
        assert meta == META
        raise LogFullError("no space to reset the log")

    monkeypatch.setattr(AtOnce, "prepare_reset", prepare_reset)
    answer, listed = transfer()
    assert (type(answer), listed) == (LogFullError, [])


@pytest.mark.parametrize("field", ["last_index", "last_term"])
def test_a_snapshot_that_is_not_the_one_announced_is_not_listed(monkeypatch, field):
    announce = AtOnce.send
    other = {"last_index": InstallSnapshot(3, 4096, 18, 3, 99, META.membership, -1)}
    other["last_term"] = InstallSnapshot(3, 4096, 17, 2, 99, META.membership, -1)
    monkeypatch.setattr(
        AtOnce, "send", lambda wire, node_id, lane, _message: announce(wire, node_id, lane, other[field])
    )
    answer, listed = transfer()
    assert (type(answer), listed) == (CorruptionError, [])


async def test_a_state_that_was_sent_is_decoded_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    threads: list[bool] = []
    decode = Journal.decode

    def observed(self, meta, chunks):
        threads.append(threading.current_thread() is threading.main_thread())
        return decode(self, meta, chunks)

    async with Group(tmp_path) as group:
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


async def test_a_node_gets_the_whole_log_although_the_leaders_first_snapshot_rotted(tmp_path: Path):
    """Another replica has this snapshot whole. With a later one the node would hold less of the log than the others."""
    async with Group(tmp_path) as group:
        late, leader, position = await group.trim_without_a_follower()
        (file,) = (group.home(leader.config.node_id) / "snapshots").glob(f"*{position}")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
        await group.start(late)
        await group.settled()
        assert group.nodes[late].first_position == position
        assert group.same_state()


async def test_a_node_gets_another_snapshot_if_the_leaders_first_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox, "COPY_WAIT_S", 0.3)
    async with Group(tmp_path) as group:
        late, leader, position = await group.trim_without_a_follower()
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
