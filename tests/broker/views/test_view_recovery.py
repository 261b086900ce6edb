"""Views can be lost, torn or stale: what a start shows is what the log says."""

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.errors import NotLeaderError
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
from dledger_broker.views.checkpointer import CHECKPOINT_SHARE, SCRUB_S
from dledger_broker.views.reading import ReadStatus

TOPICS = ("orders", "audits")


def contents(broker: BrokerInMemory) -> dict[tuple[str, int], list[bytes]]:
    return {
        (name, queue_id): broker.bodies(name, queue_id)
        for name, topic in broker.machine.state.topics.items()
        for queue_id, queue in sorted(topic.queues.items())
        if queue.max_offset
    }


def fill(broker: BrokerInMemory, start: int, count: int) -> None:
    for number in range(start, start + count):
        broker.send(TOPICS[number % 2], number % 3, Message(b"%d" % number, tags="t"))


def started() -> BrokerInMemory:
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 16))
    for topic in TOPICS:
        broker.create_topic(topic)
    return broker


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
    disk.flip_bit("views/checkpoint-1", 77)
    assert load_checkpoint(disk) == first
    disk.unlink("views/checkpoint-0")
    assert load_checkpoint(disk) is None
    remove_checkpoint(disk)
    assert disk.listdir("views") == []


@pytest.mark.parametrize("loss", ["views", "consumequeue", "consumequeue/orders", "consumequeue/orders/0", "keyindex"])
def test_whatever_view_is_deleted_everything_is_back_after_a_restart(loss):
    broker = started()
    fill(broker, 0, 90)
    broker.node.snapshot()
    fill(broker, 90, 40)
    broker.checkpoint()
    broker.run(broker.machine.keys.catch_up())
    before, digest = contents(broker), broker.machine.digest()
    broker.disk.rmtree(loss)
    again = broker.restart()
    assert contents(again) == before
    assert again.machine.digest() == digest
    again.checkpoint()
    third = again.restart()
    assert contents(third) == before


def test_what_is_not_rebuilt_yet_is_for_other_nodes_to_answer(monkeypatch):
    broker = started()
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


def test_an_intact_checkpoint_spares_the_log_below_the_snapshot(monkeypatch):
    broker = started()
    fill(broker, 0, 60)
    position = broker.node.snapshot()
    broker.checkpoint()
    before = contents(broker)
    rebuilt = []
    monkeypatch.setattr(
        "dledger_broker.kernel.machine.BrokerMachine.rebuild", lambda self, entries: rebuilt.extend(entries)
    )
    assert contents(broker.restart()) == before
    assert rebuilt == []
    assert load_checkpoint(broker.disk).position <= position


def test_what_a_checkpoint_lists_survives_a_power_loss(monkeypatch):
    broker = started()
    fill(broker, 0, 60)
    broker.node.snapshot()
    fill(broker, 60, 10)
    broker.checkpoint()
    before = contents(broker)
    broker.disk.crash(random.Random(1), "none")
    rebuilt = []
    monkeypatch.setattr(
        "dledger_broker.kernel.machine.BrokerMachine.rebuild", lambda self, entries: rebuilt.extend(entries)
    )
    assert contents(broker.restart()) == before
    assert rebuilt == []


def test_a_checkpoint_below_the_snapshot_is_continued_from_there(monkeypatch):
    broker = started()
    fill(broker, 0, 30)
    broker.checkpoint()
    reached = load_checkpoint(broker.disk).position
    fill(broker, 30, 30)
    monkeypatch.setattr("dledger_broker.views.checkpointer.Checkpointer.offer", lambda self: None)
    broker.node.snapshot()
    before = contents(broker)
    rebuilt = []
    original = type(broker.machine).rebuild

    def rebuild(self, entries):
        rebuilt.extend(entries)
        original(self, entries)

    monkeypatch.setattr(type(broker.machine), "rebuild", rebuild)
    again = broker.restart()
    assert rebuilt
    assert all(entry.end > reached for entry in rebuilt)
    assert contents(again) == before


def test_a_checkpoint_of_many_queues_is_not_written_with_every_snapshot():
    """It syncs a file for each queue, on the disk that the log is on."""
    broker = started()
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


@pytest.mark.parametrize("cut", [0, 1, 19, 20, 100, 319])
def test_a_torn_file_is_rebuilt(cut):
    broker = started()
    fill(broker, 0, 120)
    broker.node.snapshot()
    broker.checkpoint()
    before = contents(broker)
    directory = "consumequeue/orders/0"
    names = sorted(broker.disk.listdir(directory))
    broker.disk.open(f"{directory}/{names[0]}").truncate(cut)
    again = broker.restart()
    assert contents(again) == before


def test_files_that_lost_their_last_units_are_rebuilt():
    broker = started()
    fill(broker, 0, 120)
    broker.node.snapshot()
    broker.checkpoint()
    before = contents(broker)
    directory = "consumequeue/audits/1"
    newest = max(broker.disk.listdir(directory))
    broker.disk.open(f"{directory}/{newest}").pwrite(bytes(320), 0)
    assert contents(broker.restart()) == before


def test_views_of_another_incarnation_of_the_directory_are_not_trusted():
    broker = started()
    fill(broker, 0, 60)
    broker.node.snapshot()
    broker.checkpoint()
    before = contents(broker)
    save_checkpoint(broker.disk, Checkpoint(1 << 50, [], "another", 99))
    assert contents(broker.restart()) == before


def test_a_topic_deleted_after_the_checkpoint_does_not_look_like_lost_files(monkeypatch):
    broker = started()
    fill(broker, 0, 60)
    broker.node.snapshot()
    broker.checkpoint()
    requested = []
    monkeypatch.setattr(
        "dledger_broker.views.checkpointer.Checkpointer.request", lambda self, done: requested.append(1)
    )
    broker.delete_topic("orders")
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"anew"))
    broker.env.advance(1.0)
    before = contents(broker)
    rebuilt = []
    monkeypatch.setattr(
        "dledger_broker.kernel.machine.BrokerMachine.rebuild", lambda self, entries: rebuilt.extend(entries)
    )
    again = broker.restart()
    assert rebuilt == []
    assert contents(again) == before
    assert again.bodies("orders") == [b"anew"]


def test_files_that_applying_anew_sets_aside_are_not_trusted_by_the_checkpoint_that_lists_them(monkeypatch):
    """1. Behind a snapshot a topic is deleted, made again, and listed by a checkpoint; 2. a start applies the deletion
    anew, and the messages behind it are written again; 3. power is lost when another snapshot is there and another
    checkpoint is not.
    """
    broker = started()
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
    monkeypatch.setattr("dledger_broker.views.checkpointer.Checkpointer.offer", lambda self: None)
    again.node.snapshot()
    before = contents(again)
    unsynced = sorted(again.disk.listdir("consumequeue/orders/0"))[1]
    again.disk.open(f"consumequeue/orders/0/{unsynced}").pwrite(bytes(16 * 20), 0)
    assert contents(again.restart()) == before


def test_the_leaders_own_list_and_a_followers_scan_make_the_same_views():
    leader = started()
    fill(leader, 0, 50)
    follower = leader.restart(lead=False)
    other = BrokerInMemory(log=leader.log, lead=False)
    assert contents(follower) == contents(other) == contents(leader)
    leader_units = [queue.view.unwritten() for queue in leader.machine.state.topic_table.queues()]
    assert leader_units == [queue.view.unwritten() for queue in other.machine.state.topic_table.queues()]
    assert leader.machine.digest() == other.machine.digest()


def test_installing_a_snapshot_leaves_only_what_the_log_still_holds():
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
    follower.machine.on_topics_changed.append(lambda: told.append(True))
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


def test_a_snapshot_that_is_decoded_changes_nothing_before_it_is_put_in_place():
    """A worker decodes it while entries go on being applied, and another one may be installed instead."""
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


def test_no_checkpoint_lists_what_one_of_several_batches_failed_to_write(monkeypatch):
    monkeypatch.setattr("dledger_broker.views.consumequeue.MAX_QUEUES_PER_BATCH", 1)
    broker = started()
    broker.checkpoint()
    broker.disk.fail(lambda name, path: name == "pwrite" and path.startswith("consumequeue/orders"))
    fill(broker, 0, 2)
    broker.checkpoint()
    assert load_checkpoint(broker.disk).extents() == {}
    broker.checkpoint()
    assert load_checkpoint(broker.disk).extents() == {("orders", 0): (0, 1), ("audits", 1): (0, 1)}


def test_a_checkpoint_that_was_given_up_leaves_no_file_out_of_the_next_one():
    """1. The rest of a file is written; 2. another queue's cannot be, so that the checkpoint is given up; 3. the next
    file is begun, and the next checkpoint succeeds.

    The first file must be in it, or a power loss takes units that the checkpoint lists.
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


@pytest.mark.parametrize("rotten", [(0,), (1,), (0, 1)])
def test_checkpoints_that_rotted_cost_no_unit(rotten):
    broker = started()
    for start in (0, 90):
        fill(broker, start, 90)
        broker.node.snapshot()
        broker.checkpoint()
    before = contents(broker)
    for number in rotten:
        broker.disk.flip_bit(f"views/checkpoint-{number}", 77)
    again = broker.restart()
    assert contents(again) == before


@pytest.mark.parametrize("rotten", [(0,), (1,), (0, 1)])
def test_a_checkpoint_that_rots_while_a_node_runs_is_replaced_before_a_start_needs_it(monkeypatch, rotten):
    broker = started()
    for start in (0, 90):
        fill(broker, start, 90)
        broker.node.snapshot()
        broker.checkpoint()
    broker.machine.checkpointer.scrub_later()
    for number in rotten:
        broker.disk.flip_bit(f"views/checkpoint-{number}", 77)
    assert rotten_copies(broker.disk)
    for _ in rotten:
        broker.env.advance(SCRUB_S + 1)
        broker.env.run_ready()
    assert not rotten_copies(broker.disk)
    before = contents(broker)
    rebuilt = []
    monkeypatch.setattr(BrokerMachine, "rebuild", lambda _machine, entries: rebuilt.extend(entries))
    assert contents(broker.restart()) == before
    assert not rebuilt


def aside(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(".") if name.startswith("consumequeue.removed-")]


def test_files_that_count_no_more_hold_up_no_start_and_are_removed_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "QUEUES_PER_STEP", 2)
    broker = started()
    fill(broker, 0, 60)
    expected = contents(broker)
    broker.env.advance(60)
    for _ in range(2):  # the second start comes before what the first has put aside is removed
        remove_checkpoint(broker.disk)
        broker = broker.restart()
        broker.env.advance(1)
        assert contents(broker) == expected
    assert len(aside(broker.disk)) == 2
    broker.machine.checkpointer.remove_leftovers()
    broker.env.advance(60)
    assert aside(broker.disk) == []
    assert contents(broker) == expected


def test_what_a_disk_would_not_remove_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = started()
    fill(broker, 0, 60)
    broker.env.advance(60)
    remove_checkpoint(broker.disk)
    broker = broker.restart()

    def failing(_path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(broker.disk, "rmtree", failing)
        broker.machine.checkpointer.remove_leftovers()
        broker.env.advance(1)
    assert aside(broker.disk)
    broker.env.advance(leftovers.RETRY_S)
    assert aside(broker.disk) == []


def test_a_stop_does_not_wait_for_what_was_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "QUEUES_PER_STEP", 1)
    broker = started()
    fill(broker, 0, 60)
    broker.env.advance(60)
    remove_checkpoint(broker.disk)
    broker = broker.restart()
    broker.machine.checkpointer.remove_leftovers()
    broker.run(broker.machine.close())
    left = aside(broker.disk)
    assert left
    broker = broker.restart()
    broker.machine.checkpointer.remove_leftovers()
    broker.env.advance(60)
    assert aside(broker.disk) == []
