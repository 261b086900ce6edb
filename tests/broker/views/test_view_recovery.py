"""Views can be lost, torn or stale: after a start, they show what the log says."""

import errno
import random
from collections.abc import Callable
from functools import partial

import pytest
from broker_in_memory import contents
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import NotLeaderError
from dledger.statemachine import CommittedEntry
from dledger.testing.disk import SimDisk
from dledger_broker.features.queries.by_key import KeyQueries
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.testing import BrokerInMemory, FakeLog, Message
from dledger_broker.views import leftovers
from dledger_broker.views.checkpoint import (
    Checkpoint,
    TopicExtent,
    load_checkpoint,
    remove_checkpoint,
    rotten_copies,
    save_checkpoint,
)
from dledger_broker.views.checkpointer import CHECKPOINT_SHARE, SCRUB_S, Checkpointer
from dledger_broker.views.reading import ReadStatus
from tests.broker.telling import tell

TOPICS = ("orders", "audits")


def fill(broker: BrokerInMemory, start: int, count: int) -> None:
    for number in range(start, start + count):
        broker.send(TOPICS[number % 2], number % 3, Message(b"%d" % number, tags="t"))


@pytest.fixture
def broker() -> BrokerInMemory:
    return started()


def started() -> BrokerInMemory:
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 16))
    for topic in TOPICS:
        broker.create_topic(topic)
    return broker


def saved(broker: BrokerInMemory, count: int, start: int = 0) -> dict[tuple[str, int], list[bytes]]:
    """Store messages, take a snapshot and a checkpoint, and return the contents of all queues."""
    fill(broker, start, count)
    broker.node.snapshot()
    broker.checkpoint()
    return contents(broker)


@pytest.fixture
def rebuilt(monkeypatch) -> list[CommittedEntry]:
    """Return the entries that starts from now on read again. Their views are not rebuilt."""
    entries: list[CommittedEntry] = []
    monkeypatch.setattr(BrokerMachine, "rebuild", lambda _machine, more: entries.extend(more))
    return entries


def test_a_checkpoint_survives_the_loss_of_either_copy():
    disk = SimDisk()
    assert load_checkpoint(disk) is None
    first = Checkpoint(100, [TopicExtent("orders", 48, [(0, 1, 9)])], "i", 0)
    second = Checkpoint(200, [], "i", 1)
    save_checkpoint(disk, first)
    assert load_checkpoint(disk) == first
    assert first.extents() == {("orders", 0): (1, 9)}
    save_checkpoint(disk, second)
    assert load_checkpoint(disk) == second
    disk.flip_bit("views/stamped-1", 77)
    assert load_checkpoint(disk) == first
    disk.unlink("views/stamped-0")
    assert load_checkpoint(disk) is None
    remove_checkpoint(disk)
    assert disk.listdir("views") == []


def tear(disk: SimDisk, size: int) -> None:
    directory = "consumequeue/orders/0"
    disk.open(f"{directory}/{min(disk.listdir(directory))}").truncate(size)


def lose_last_units(disk: SimDisk) -> None:
    directory = "consumequeue/audits/1"
    disk.open(f"{directory}/{max(disk.listdir(directory))}").pwrite(bytes(320), 0)


def rot_checkpoints(disk: SimDisk, *numbers: int) -> None:
    for number in numbers:
        disk.flip_bit(f"views/stamped-{number}", 77)


DIRECTORIES = ("views", "consumequeue", "consumequeue/orders", "consumequeue/orders/0", "keyindex")
LOSSES: dict[str, Callable[[SimDisk], None]] = {
    **{f"{name} is lost": partial(SimDisk.rmtree, path=name) for name in DIRECTORIES},
    **{f"a file is torn at {size}": partial(tear, size=size) for size in (0, 1, 19, 20, 100, 319)},
    "the last units are lost": lose_last_units,
    "another directory's checkpoint": lambda disk: save_checkpoint(disk, Checkpoint(1 << 50, [], "another", 99)),
    "the first checkpoint rots": lambda disk: rot_checkpoints(disk, 0),
    "the second checkpoint rots": lambda disk: rot_checkpoints(disk, 1),
    "both checkpoints rot": lambda disk: rot_checkpoints(disk, 0, 1),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_restart_rebuilds_what_is_lost_torn_rotten_or_of_another_directory(broker, lose):
    saved(broker, 90)
    fill(broker, 90, 40)
    broker.checkpoint()
    broker.run(broker.machine.keys.catch_up())
    before, digest = contents(broker), broker.machine.digest()
    lose(broker.disk)
    again = broker.restart()
    assert contents(again) == before
    assert again.machine.digest() == digest
    again.checkpoint()
    assert contents(again.restart()) == before


QUEUE_NAMES = ("consumequeue", "consumequeue/orders/0", f"consumequeue/orders/0/{0:020}", "consumequeue/.deleted-")


@pytest.mark.parametrize("lost", [*QUEUE_NAMES, "views/stamped-0", "views/stamped-1"])
def test_a_restart_rebuilds_a_view_whose_name_cannot_be_looked_up(broker, lost, monkeypatch):
    """Such a name can neither be opened nor removed, until the directory around it is renamed."""
    saved(broker, 90)
    fill(broker, 90, 40)
    broker.checkpoint()
    before, exists, is_aside = contents(broker), broker.disk.exists, False

    def strikes(operation: str, path: str) -> bool:
        nonlocal is_aside
        is_aside |= (operation, path) == ("rename", "consumequeue")
        is_lost = path == lost or path.startswith(lost if lost.endswith("-") else f"{lost}/")
        return is_lost and not is_aside and operation in {"exists", "open", "unlink"}

    def looked_up(path: str) -> bool:
        broker.disk._check_faults("exists", path)
        return exists(path)

    monkeypatch.setattr(broker.disk, "exists", looked_up)
    broker.disk.fail(strikes, errno.EIO, once=False)
    again = broker.restart()
    assert contents(again) == before
    again.checkpoint()
    assert contents(again.restart()) == before


def test_questions_about_messages_that_are_not_rebuilt_yet_are_left_to_other_nodes(broker, monkeypatch):
    fill(broker, 0, 90)
    first, last = (broker.send("orders", 0, Message(body, keys="key")).extent[0] for body in (b"first", b"last"))
    broker.node.snapshot()
    broker.disk.rmtree("consumequeue")
    lost, rebuild = [], BrokerMachine.rebuild
    monkeypatch.setattr(BrokerMachine, "rebuild", lambda _machine, entries: lost.extend(entries))
    again = broker.restart(lead=False)
    queue, lookup = again.queue("orders"), again.machine.lookup
    for entry in lost:
        if entry.records_position == last:
            break
        rebuild(again.machine, [entry])
    held = queue.view.end
    assert 0 < held == queue.next_offset - 1
    assert again.reads.get_messages(queue, held - 1, 5, 1 << 20).message_count == 1
    results = [again.reads.get_messages(queue, held, 5, 1 << 20)]
    again.reads.get_messages_later(queue, held, 5, 1 << 20, None, results.append)
    assert [result.status for result in results] == [ReadStatus.NOT_REBUILT] * 2
    assert again.run(lookup.message_at(first)) is not None
    for question in (
        lambda: lookup.message_at(last),
        lambda: KeyQueries(again.machine.keys, lookup).query("orders", "key", 5, 0, 1 << 60, max_bytes=1 << 20),
    ):
        with pytest.raises(NotLeaderError, match="not rebuilt"):
            again.run(question())
    rebuild(again.machine, lost[lost.index(entry) :])
    assert again.run(lookup.message_at(last)) is not None
    assert contents(again) == contents(broker)


@pytest.mark.parametrize("power_is_lost", [False, True])
def test_an_intact_checkpoint_spares_the_log_below_the_snapshot(broker, rebuilt, power_is_lost):
    fill(broker, 0, 60)
    position = broker.node.snapshot()
    fill(broker, 60, 10 * power_is_lost)
    broker.checkpoint()
    before = contents(broker)
    if power_is_lost:
        broker.disk.crash(random.Random(1), "none")
    else:
        assert load_checkpoint(broker.disk).position <= position
    assert contents(broker.restart()) == before
    assert rebuilt == []


def test_a_checkpoint_below_the_snapshot_is_continued_from_there(broker, monkeypatch):
    fill(broker, 0, 30)
    broker.checkpoint()
    reached = load_checkpoint(broker.disk).position
    fill(broker, 30, 30)
    monkeypatch.setattr(Checkpointer, "offer", lambda self: None)
    broker.node.snapshot()
    before, rebuilt, original = contents(broker), [], BrokerMachine.rebuild

    def rebuild(self, entries):
        rebuilt.extend(entries)
        original(self, entries)

    monkeypatch.setattr(BrokerMachine, "rebuild", rebuild)
    again = broker.restart()
    assert rebuilt
    assert all(entry.end > reached for entry in rebuilt)
    assert contents(again) == before


def test_a_checkpoint_of_many_queues_is_not_written_with_every_snapshot(broker):
    """A checkpoint syncs a file per queue, on the log's disk."""
    broker.create_topic("wide", queues=160)
    checkpointer = broker.machine.checkpointer

    def fill_all():
        for queue_id in range(160):
            broker.send("wide", queue_id, Message(b"x"))

    fill_all()
    began_at = broker.env.now()
    broker.checkpoint()
    took_s = broker.env.now() - began_at
    reached = checkpointer.position
    assert took_s > 0.5
    fill_all()
    broker.node.snapshot()
    broker.env.advance(took_s)
    assert checkpointer.position == reached
    broker.env.advance(took_s / CHECKPOINT_SHARE)
    broker.node.snapshot()
    assert checkpointer.position > reached


def test_a_topic_deleted_after_the_checkpoint_does_not_look_like_lost_files(broker, rebuilt, monkeypatch):
    saved(broker, 60)
    monkeypatch.setattr(Checkpointer, "request", lambda self, done: None)
    broker.delete_topic("orders")
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"anew"))
    broker.env.advance(1.0)
    before = contents(broker)
    again = broker.restart()
    assert rebuilt == []
    assert contents(again) == before
    assert again.bodies("orders") == [b"anew"]


def test_a_checkpoint_does_not_vouch_for_files_set_aside_by_a_reapplied_deletion(broker, monkeypatch):
    """A checkpoint does not vouch for files that a start sets aside when it applies a deletion again.

    1. After a snapshot, a topic is deleted, made again, and listed by a checkpoint.
    2. A start applies the deletion again, and the messages after it are written again.
    3. Power is lost after another snapshot and before another checkpoint.
    """
    fill(broker, 0, 60)
    broker.node.snapshot()
    broker.delete_topic("orders")
    broker.create_topic("orders")
    for number in range(48):
        broker.send("orders", 0, Message(b"anew%d" % number))
    broker.checkpoint()
    broker.checkpoint()
    again = broker.restart()
    again.env.advance(1.0)
    monkeypatch.setattr(Checkpointer, "offer", lambda self: None)
    again.node.snapshot()
    before = contents(again)
    unsynced = sorted(again.disk.listdir("consumequeue/orders/0"))[1]
    again.disk.open(f"consumequeue/orders/0/{unsynced}").pwrite(bytes(16 * 20), 0)
    assert contents(again.restart()) == before


def test_an_installed_snapshot_leaves_only_messages_that_the_log_holds():
    leader = started()
    fill(leader, 0, 60)
    position = leader.node.snapshot()
    fill(leader, 60, 12)
    follower = BrokerInMemory(log=FakeLog())
    follower.create_topic("stale")
    follower.send("stale", 0, Message(b"stale"))
    follower.flush_views()
    follower.node.log = leader.log
    leader.log.first_position = position
    told = []
    tell(follower.machine.events, "topics_changed", lambda: told.append(True))
    follower.node.restore(position)
    follower.node.catch_up()
    follower.env.run_ready()
    assert told
    assert follower.machine.digest() == leader.machine.digest()
    assert follower.bodies("orders", 0) == [b"60", b"66"]
    assert follower.queue("orders", 0).min_offset == 10
    follower.env.advance(1.0)
    assert sorted(follower.disk.listdir("consumequeue")) == sorted(TOPICS)
    follower.checkpoint()
    before = contents(follower)
    follower.disk.rmtree("consumequeue")
    assert contents(follower.restart(lead=False)) == before


def test_a_decoded_snapshot_changes_nothing_before_its_installation():
    """A worker decodes it while entries are still applied, and another snapshot may be installed instead."""
    leader = started()
    fill(leader, 0, 60)
    position = leader.node.snapshot()
    then = leader.machine.digest()
    restore = leader.machine.decode(*leader.log.snapshots[position])
    fill(leader, 60, 12)
    leader.create_topic("later")
    before, digest, applied = contents(leader), leader.machine.digest(), leader.machine.applied_position
    leader.machine.decode(*leader.log.snapshots[position])
    assert (contents(leader), leader.machine.digest()) == (before, digest)
    assert leader.machine.applied_position == applied
    assert leader.bodies("orders", 0)[-1] == b"66"
    assert restore() == leader.machine.applied_position == position
    assert leader.machine.digest() == then != digest
    assert leader.machine.topic("later") is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(["none", "random", "all"]), st.data())
def test_a_power_loss_at_any_moment_loses_no_unit(seed, keep, data):
    rng = random.Random(seed)
    broker = started()
    number = 0
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["fill", "flush", "checkpoint", "snapshot", "delete", "power loss"])):
            case "fill":
                count = data.draw(st.integers(1, 25))
                fill(broker, number, count)
                number += count
            case "flush":
                broker.env.advance(0.1 + rng.random() / 2)
            case "checkpoint":
                broker.machine.checkpointer.request()
                broker.env.advance(rng.random() / 10)
            case "snapshot":
                broker.node.snapshot()
            case "delete":
                broker.delete_topic("audits")
                broker.create_topic("audits")
            case "power loss":
                before = contents(broker)
                broker.disk.crash(rng, keep)
                broker = broker.restart()
                assert contents(broker) == before
    before, digest = contents(broker), broker.machine.digest()
    broker.disk.crash(rng, keep)
    again = broker.restart()
    assert contents(again) == before
    assert again.machine.digest() == digest


def test_no_checkpoint_lists_units_that_a_failed_batch_did_not_write(monkeypatch):
    monkeypatch.setattr("dledger_broker.views.consumequeue.MAX_QUEUES_PER_BATCH", 1)
    broker = started()
    broker.checkpoint()
    broker.disk.fail(lambda name, path: name == "pwrite" and path.startswith("consumequeue/orders"))
    fill(broker, 0, 2)
    broker.checkpoint()
    assert load_checkpoint(broker.disk).extents() == {}
    broker.checkpoint()
    assert load_checkpoint(broker.disk).extents() == {("orders", 0): (0, 1), ("audits", 1): (0, 1)}


def test_files_of_an_abandoned_checkpoint_are_synced_by_the_next_checkpoint():
    """A checkpoint that was given up leaves no file out of the next checkpoint.

    1. The rest of a file is written.
    2. The write of another queue fails, so the checkpoint is given up.
    3. The next file is begun, and the next checkpoint succeeds.

    The next checkpoint must sync the first file. Otherwise a power loss takes units that the checkpoint lists.
    """

    def send(count: int) -> None:
        for _ in range(count):
            broker.send("orders", 0, Message(b"x"))
        broker.flush_views()

    broker = started()
    per_file = broker.config.units_per_file
    send(per_file - 4)
    broker.checkpoint()
    send(4)
    fault = broker.disk.fail(lambda name, path: name == "pwrite" and path.startswith("consumequeue/audits"), once=False)
    broker.send("audits", 0, Message(b"x"))
    broker.flush_views()
    broker.checkpoint()
    broker.disk.faults.remove(fault)
    send(4)
    broker.node.snapshot()
    broker.checkpoint()
    expected = contents(broker)
    broker.disk.crash(random.Random(1), "none")
    assert contents(broker.restart()) == expected


def test_a_start_writes_a_rotten_copy_of_the_checkpoint_anew(broker):
    """A node without traffic writes no checkpoint by itself."""
    saved(broker, 90)
    saved(broker, 90, start=90)
    rot_checkpoints(broker.disk, 1)
    broker.machine.checkpointer.scrub()
    broker.env.run_ready()
    assert not rotten_copies(broker.disk)


@pytest.mark.parametrize("rotten", [(0,), (1,), (0, 1)])
def test_a_checkpoint_that_rots_while_a_node_runs_is_rewritten_before_the_next_start(broker, rebuilt, rotten):
    saved(broker, 90)
    before = saved(broker, 90, start=90)
    broker.machine.checkpointer.scrub()
    rot_checkpoints(broker.disk, *rotten)
    assert rotten_copies(broker.disk)
    for _ in rotten:
        broker.env.advance(SCRUB_S + 1)
        broker.env.run_ready()
    assert not rotten_copies(broker.disk)
    assert contents(broker.restart()) == before
    assert not rebuilt


def aside(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(".") if name.startswith("consumequeue.removed-")]


@pytest.fixture
def leaving(broker: BrokerInMemory) -> BrokerInMemory:
    """Return a broker whose start has put the files of 60 messages aside."""
    fill(broker, 0, 60)
    broker.env.advance(60)
    before = contents(broker)
    remove_checkpoint(broker.disk)
    again = broker.restart()
    assert contents(again) == before
    return again


def test_leftover_files_delay_no_start_and_are_removed_later(
    leaving: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "QUEUES_PER_STEP", 2)
    leaving.env.advance(1)
    expected = contents(leaving)
    remove_checkpoint(leaving.disk)
    broker = leaving.restart()  # before the files that the first start put aside are removed
    broker.env.advance(1)
    assert contents(broker) == expected
    assert len(aside(broker.disk)) == 2
    broker.machine.checkpointer.remove_leftovers()
    broker.env.advance(60)
    assert aside(broker.disk) == []
    assert contents(broker) == expected


def test_a_failed_removal_of_leftovers_is_retried(leaving: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(leaving.disk, "rmtree", failing)
        leaving.machine.checkpointer.remove_leftovers()
        leaving.env.advance(1)
    assert aside(leaving.disk)
    leaving.env.advance(leftovers.RETRY_S)
    assert aside(leaving.disk) == []


def test_a_stop_does_not_wait_until_leftovers_are_gone(
    leaving: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "QUEUES_PER_STEP", 1)
    leaving.machine.checkpointer.remove_leftovers()
    leaving.run(leaving.machine.close())
    assert aside(leaving.disk)
    broker = leaving.restart()
    broker.machine.checkpointer.remove_leftovers()
    broker.env.advance(60)
    assert aside(broker.disk) == []
