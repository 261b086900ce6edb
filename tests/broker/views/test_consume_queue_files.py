import errno
import sys

import pytest
from simulated_files import content

from dledger.errors import CorruptionError
from dledger.store.disk import OsDisk
from dledger.testing.disk import SimDisk
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.testing import SMALL, BrokerInMemory, FakeLog, Message
from dledger_broker.views import consumequeue
from dledger_broker.views.checkpoint import load_checkpoint
from dledger_broker.views.consumequeue import MAX_QUEUES_PER_BATCH
from dledger_broker.views.unitfiles import (
    MAX_OPEN_FILES,
    FileLayout,
    OpenFiles,
    QueueFileWriter,
    UnitBatch,
    deleted_directory,
    queue_directory,
)
from dledger_broker.views.unitreader import read_units
from dledger_broker.views.units import FILLER, UNIT, UNIT_BYTES, UNITS_PER_FILE, first_where
from dledger_remoting.filters.tags import tag_code

DIRECTORY = "consumequeue/orders/3"
LAYOUT = FileLayout(16)
BUSY = 6


def test_a_unit_is_position_size_and_tag_code():
    assert UNIT.pack(1024, 116, tag_code("TagA")).hex() == "00000000000004000000007400000000" + "0027a807"
    assert UNIT.pack(1 << 40, 1, -5).hex() == "000001000000000000000001fffffffffffffffb"


def test_files_have_rocketmqs_names_and_sizes():
    layout = FileLayout()
    assert (UNITS_PER_FILE, layout.file_bytes) == (300_000, 6_000_000)
    assert [layout.path("queue", offset) for offset in (0, 299_999, 300_000, 600_001)] == [
        "queue/00000000000000000000",
        "queue/00000000000000000000",
        "queue/00000000000006000000",
        "queue/00000000000012000000",
    ]
    assert layout.first_offset("00000000000006000000") == 300_000


def test_messages_become_units_in_full_size_files():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for number in range(18):
        broker.send("orders", 3, Message(b"%d" % number, tags="TagA"))
    broker.flush_views()
    first = content(broker.disk, f"{DIRECTORY}/00000000000000000000")
    second = content(broker.disk, f"{DIRECTORY}/00000000000000000320")
    assert (len(first), len(second)) == (320, 320)
    units = [*UNIT.iter_unpack(first), *UNIT.iter_unpack(second[:40])]
    for position, size, code in units:
        assert int.from_bytes(broker.log.data[position : position + 4], "big") == size
        assert code == 2598919
    assert not any(second[40:])


def test_a_queue_that_begins_in_the_middle_of_a_file_has_fillers_before():
    disk = SimDisk()
    writer = QueueFileWriter(disk, LAYOUT)
    unit = UNIT.pack(77, 100, 0)
    writer.write([UnitBatch(DIRECTORY, 19, unit)])
    assert content(disk, f"{DIRECTORY}/00000000000000000320")[:80] == FILLER * 3 + unit
    assert FILLER.hex() == "0000000000000000" + "7fffffff" + "0000000000000000"


def test_a_read_spans_files_and_says_what_is_missing():
    disk = SimDisk()
    writer = QueueFileWriter(disk, LAYOUT)
    units = b"".join(UNIT.pack(100 * number, 100, 0) for number in range(40))
    writer.write([UnitBatch(DIRECTORY, 0, units)])
    assert read_units(disk, LAYOUT, DIRECTORY, 10, 25) == units[200:700]
    disk.unlink(f"{DIRECTORY}/00000000000000000320")
    with pytest.raises(CorruptionError, match=r"lacks the unit of queue offset 16; restart this node"):
        read_units(disk, LAYOUT, DIRECTORY, 10, 25)


def test_a_queue_is_written_at_most_once_per_batch():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.flush_views()
    writes: list[str] = []
    original = QueueFileWriter.write

    def counting(self, batches):
        writes.extend(batch.directory for batch in batches)
        original(self, batches)

    QueueFileWriter.write = counting
    try:
        for number in range(9):
            broker.send("orders", number % 3, Message(b"x"))
            broker.env.advance(0.01)
        assert writes == []
        broker.flush_views()
    finally:
        QueueFileWriter.write = original
    assert sorted(writes) == [f"consumequeue/orders/{queue_id}" for queue_id in range(3)]


def test_what_was_acknowledged_can_be_read_whether_it_is_written_or_not():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    expected = []
    for number in range(60):
        sent = broker.send("orders", 0, Message(b"%d" % number))
        expected.append(b"%d" % number)
        assert sent.outcome == "applied"
        assert broker.bodies("orders") == expected
        if number % 7 == 0:
            broker.flush_views()


def test_an_idle_queue_keeps_no_units_in_memory():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    for _ in range(100):
        broker.send("orders", 0, Message(b"x"))
    queue = broker.queue("orders")
    broker.flush_views()
    assert len(queue.view.tail) > 0
    broker.flush_views()
    assert (len(queue.view.tail), queue.view.written) == (0, 100)
    parts = (queue, queue.view, queue.view.tail)
    assert sum(map(sys.getsizeof, parts)) < 512
    assert len(broker.bodies("orders")) == 100


def test_busy_queues_together_keep_a_bounded_number_of_written_units_in_memory(monkeypatch):
    monkeypatch.setattr(consumequeue, "MAX_RESIDENT_UNITS", 2 * BUSY)
    monkeypatch.setattr(consumequeue, "MAX_QUEUES_PER_BATCH", 2)
    broker = BrokerInMemory()
    broker.create_topic("orders", queues=BUSY)
    for _ in range(10):
        for queue_id in range(BUSY):
            broker.send("orders", queue_id, Message(b"x"))
    broker.flush_views()
    kept = [
        len(queue.view.tail) // UNIT_BYTES for queue in broker.machine.state.topic_table.queues() if queue.view.written
    ]
    assert kept == [2, 2]


def test_open_files_are_bounded():
    disk = SimDisk()
    files = OpenFiles(disk)
    disk.mkdir("d")
    for number in range(MAX_OPEN_FILES + 50):
        files.get(f"d/{number}", create=True)
    assert len(files) == MAX_OPEN_FILES
    files.forget("d/")
    assert len(files) == 0


def test_a_full_disk_delays_the_files_and_nothing_else():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    fault = broker.disk.fail(lambda operation, path: "consumequeue" in path, errno.ENOSPC, once=False)
    broker.send("orders", 0, Message(b"a"))
    broker.env.advance(1.0)
    assert broker.bodies("orders") == [b"a"]
    checkpoint = broker.machine.checkpointer
    done = []
    checkpoint.request(lambda *, saved: done.append(saved))
    broker.env.advance(1.0)
    assert done == [False]
    assert not broker.disk.exists("views/checkpoint-0")
    broker.disk.faults.remove(fault)
    broker.send("orders", 0, Message(b"b"))
    broker.env.advance(1.0)
    broker.checkpoint()
    assert broker.disk.exists("views/checkpoint-0")
    assert broker.restart().bodies("orders") == [b"a", b"b"]


def test_deleting_a_topic_removes_its_files_once_a_checkpoint_no_longer_lists_them():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"old"))
    broker.checkpoint()
    broker.delete_topic("orders")
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"new"))
    broker.env.advance(1.0)
    assert len(broker.disk.listdir("consumequeue")) == 2
    broker.checkpoint()
    assert broker.disk.listdir("consumequeue") == ["orders"]
    assert broker.bodies("orders") == [b"new"]


def test_a_deletion_that_is_applied_anew_frees_the_topics_name_again():
    """1. A topic's files are set aside; 2. before a checkpoint lists them no more, a start applies messages of the
    topic and its deletion again.
    """
    disk = SimDisk()
    writer = QueueFileWriter(disk, LAYOUT)
    for _ in range(2):
        writer.write([UnitBatch(DIRECTORY, 0, UNIT.pack(48, 100, 0))])
        writer.set_aside("orders", 48)
        assert len(disk.listdir("consumequeue")) == 1
        assert not disk.exists("consumequeue/orders")


def test_a_deleted_topic_with_the_longest_name_is_set_aside(tmp_path):
    """On a real disk, which has a limit for names."""
    disk, name = OsDisk(str(tmp_path)), "%RETRY%" + "g" * 248
    writer = QueueFileWriter(disk, LAYOUT)
    writer.write([UnitBatch(queue_directory(name, 0), 0, UNIT.pack(48, 100, 0))])
    writer.set_aside(name, 1 << 40)
    [left] = disk.listdir("consumequeue")
    assert f"consumequeue/{left}" == deleted_directory(name, 1 << 40)
    assert left != deleted_directory(name + "g", 1 << 40).rpartition("/")[2]
    writer.close()


def test_a_trim_of_a_deleted_topic_takes_no_file_of_the_next_topic_of_that_name():
    """1. A trim waits for a checkpoint; 2. the topic is deleted and made again; 3. the checkpoint is there."""
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 16))
    broker.node.on_trimmed(broker.machine._trimmed)
    broker.create_topic("orders")
    created = broker.machine.state.topics["orders"].created_position
    broker.send("orders", 0, *[Message(b"old")] * 40)
    broker.flush_views()
    position = broker.node.snapshot()
    broker.env.advance(1.0)
    broker.machine.stage_command(TrimQueues(position, (("orders", created, 0, 40),)), lambda _: None)
    broker.env.run_ready()
    broker.node.durable_limit = position
    assert broker.node.trim(position)
    broker.delete_topic("orders")
    broker.create_topic("orders")
    new = [Message(b"new%d" % number) for number in range(20)]
    broker.send("orders", 0, *new)
    broker.env.advance(1.0)
    broker.node.durable_limit = None
    broker.env.advance(1.0)
    assert broker.queue("orders").view.tail_start == len(new), "still in memory: this would show nothing"
    assert broker.bodies("orders") == [message.body for message in new]


def test_a_search_for_the_first_number_that_holds():
    assert [first_where(3, 9, lambda number, limit=limit: number >= limit) for limit in (0, 3, 5, 8, 9, 20)] == [
        *(3, 3, 5, 8, 9, 9)
    ]


def test_ten_thousand_queues_cost_few_handles_and_little_memory():
    broker = BrokerInMemory(config=SMALL)
    broker.create_topic("orders", queues=10_000)
    for queue_id in range(0, 10_000, 10):
        broker.send("orders", queue_id, Message(b"x"))
    queues = list(broker.machine.state.topic_table.queues())
    assert len(queues) == 1000
    broker.flush_views()
    assert sum(queue.view.written for queue in queues) == MAX_QUEUES_PER_BATCH
    assert broker.bodies("orders", 9_990) == [b"x"]
    broker.env.advance(2.0)
    assert all(queue.view.written == 1 and not queue.view.tail for queue in queues)
    assert len(broker.machine.queues._files._files) <= MAX_OPEN_FILES


def test_what_is_appended_while_a_node_stops_starts_no_work():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.send("orders", 3, Message(b"0"))
    broker.run(broker.machine.close())
    written = content(broker.disk, f"{DIRECTORY}/00000000000000000000")
    broker.send("orders", 3, Message(b"1"))
    broker.env.run_blocking = None
    broker.flush_views()
    assert content(broker.disk, f"{DIRECTORY}/00000000000000000000") == written
    assert broker.bodies("orders", 3) == [b"0", b"1"]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stop_syncs_many_files_at_once_where_that_can_be_done(monkeypatch: pytest.MonkeyPatch, at_once: bool):
    broker = BrokerInMemory()
    broker.create_topic("orders", 30)
    for queue_id in range(30):
        broker.send("orders", queue_id, Message(b"x"))
    single: list[str] = []
    monkeypatch.setattr(broker.machine.queues._files, "sync", single.extend)
    monkeypatch.setattr(broker.disk, "sync_all", lambda: at_once)
    broker.run(broker.machine.close())
    assert (len(single) >= 60) is not at_once
    assert load_checkpoint(broker.disk) is not None
    assert broker.machine.queues.backlog == ""


def test_a_stop_whose_sync_fails_leaves_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch):
    broker = BrokerInMemory()
    broker.create_topic("orders", 30)
    for queue_id in range(30):
        broker.send("orders", queue_id, Message(b"x"))

    def fail() -> bool:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(broker.disk, "sync_all", fail)
    broker.run(broker.machine.close())
    assert load_checkpoint(broker.disk) is None


def test_what_is_not_on_the_disk_yet_is_told(monkeypatch: pytest.MonkeyPatch):
    broker = BrokerInMemory()
    broker.create_topic("orders", 300)
    queues = broker.machine.queues
    assert queues.backlog == ""
    for queue_id in range(300):
        broker.send("orders", queue_id, Message(b"x"))
    assert queues.backlog == "the files of about 512 consume queues are to be written"
    queues.flush()
    broker.env.run_ready()
    assert queues.backlog == ""
    queues.sync(lambda _: None)
    broker.env.run_ready()
    assert queues.backlog.endswith("files of consume queues are to be synced")
    broker.env.advance(60)
    assert queues.backlog == ""


def test_no_checkpoint_begins_behind_the_last_one():
    """One that did, for a snapshot that is due while the node stops, went on when the node's threads had ended."""
    broker = BrokerInMemory()
    broker.node.on_trimmed(broker.machine._trimmed)
    broker.create_topic("orders")
    broker.send("orders", 3, Message(b"0"))
    broker.env.advance(1.0)
    broker.run(broker.machine.close())
    broker.env.advance(1.0)
    broker.env.run_blocking = None
    broker.node.snapshot()
    broker.machine.checkpointer.maybe_start(1 << 50)


def trimmed_broker() -> tuple[BrokerInMemory, list[int]]:
    """A broker whose checkpoint lists all files of a queue, and where its log may be cut: behind two of them each."""
    broker = BrokerInMemory()
    broker.node.on_trimmed(broker.machine._trimmed)
    broker.create_topic("orders")
    cuts = []
    for part in range(3):
        broker.send("orders", 0, *[Message(b"%d" % part)] * (2 * SMALL.units_per_file))
        cuts.append(broker.node.snapshot())
    broker.flush_views()
    broker.flush_views()
    broker.checkpoint()
    return broker, cuts


def cut_off(broker: BrokerInMemory, position: int, first_offset: int) -> None:
    created = broker.machine.state.topics["orders"].created_position
    broker.machine.stage_command(TrimQueues(position, (("orders", created, 0, first_offset),)), lambda _: None)
    broker.node.commit()
    assert broker.node.trim(position)


def files_of(broker: BrokerInMemory) -> int:
    return len(broker.disk.listdir("consumequeue/orders/0"))


def test_a_trim_removes_files_once_no_checkpoint_lists_them(caplog):
    broker, (cut, *_) = trimmed_broker()
    files = files_of(broker)
    cut_off(broker, cut, 2 * SMALL.units_per_file)
    broker.env.advance(5.0)
    assert files_of(broker) == files - 2
    broker.restart()
    assert "queues_rebuilt" not in caplog.text


def test_a_trim_removes_no_file_whose_checkpoint_could_not_be_saved(caplog):
    broker, (cut, *_) = trimmed_broker()
    files = files_of(broker)
    fault = broker.disk.fail(lambda operation, path: "views/checkpoint" in path, errno.ENOSPC, once=False)
    cut_off(broker, cut, 2 * SMALL.units_per_file)
    broker.env.advance(5.0)
    assert files_of(broker) == files
    broker.disk.faults.remove(fault)
    caplog.clear()
    broker.restart()
    assert "queues_rebuilt" not in caplog.text


def test_files_that_were_kept_are_removed_with_the_next_trim():
    broker, (cut, *_) = trimmed_broker()
    files = files_of(broker)
    fault = broker.disk.fail(lambda operation, path: "views/checkpoint" in path, errno.ENOSPC, once=False)
    cut_off(broker, cut, 2 * SMALL.units_per_file)
    broker.env.advance(5.0)
    broker.disk.faults.remove(fault)
    broker.machine._trimmed(cut)
    broker.env.advance(5.0)
    assert files_of(broker) == files - 2


def test_a_trim_while_a_node_stops_removes_no_file_that_its_last_checkpoint_lists(caplog):
    broker, (cut, *_) = trimmed_broker()
    files, closed = files_of(broker), []
    broker.machine.checkpointer.close(lambda: closed.append(1))
    cut_off(broker, cut, 2 * SMALL.units_per_file)
    while not closed:
        broker.env.advance(0.1)
    broker.env.run_ready()
    assert files_of(broker) == files
    broker.restart()
    assert "queues_rebuilt" not in caplog.text


def test_a_checkpoint_removes_no_file_that_a_later_trim_takes(monkeypatch, caplog):
    """That trim's own checkpoint is yet to be saved."""
    broker, cuts = trimmed_broker()
    files = files_of(broker)
    for number, cut in enumerate(cuts[:2], 1):
        cut_off(broker, cut, number * 2 * SMALL.units_per_file)
    remove = broker.machine.queues.remove_below

    def removed_and_full(starts):
        remove(starts)
        broker.disk.fail(lambda operation, path: "views/checkpoint" in path, errno.ENOSPC, once=False)

    monkeypatch.setattr(broker.machine.queues, "remove_below", removed_and_full)
    broker.env.advance(5.0)
    assert files_of(broker) == files - 2
    broker.disk.faults.clear()
    caplog.clear()
    broker.restart()
    assert "queues_rebuilt" not in caplog.text
