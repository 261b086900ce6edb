import errno
import sys

import pytest
from broker_in_memory import content

from dledger.errors import CorruptionError
from dledger.store.disk import OsDisk
from dledger.store.open_files import share_of_files
from dledger.testing.disk import SimDisk
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.testing import SMALL, BrokerInMemory, FakeLog, Message
from dledger_broker.views import consumequeue
from dledger_broker.views.checkpoint import load_checkpoint
from dledger_broker.views.consumequeue import MAX_QUEUES_PER_BATCH
from dledger_broker.views.stamps import are_whole, stamp_in_python, state
from dledger_broker.views.unitfiles import (
    FileLayout,
    OpenFiles,
    QueueFileWriter,
    UnitBatch,
    deleted_directory,
    queue_directory,
)
from dledger_broker.views.unitreader import read_units
from dledger_broker.views.units import FILLER, READ_UNIT, UNIT, UNIT_BYTES, UNITS_PER_FILE, first_where
from dledger_remoting.filters.tags import tag_code

DIRECTORY = "consumequeue/orders/3"
LAYOUT = FileLayout(16)
BUSY = 6


def test_units_and_files_have_rocketmqs_layout_names_and_sizes():
    assert UNIT.pack(1024, 116, tag_code("TagA")).hex() == "00000000000004000000007400000000" + "0027a807"
    assert UNIT.pack(1 << 40, 1, -5).hex() == "000001000000000000000001fffffffffffffffb"
    layout = FileLayout()
    assert (UNITS_PER_FILE, layout.file_bytes) == (300_000, 6_000_000)
    names = [layout.path("queue", offset) for offset in (0, 299_999, 300_000, 600_001)]
    assert names == [f"queue/{start:020d}" for start in (0, 0, 6_000_000, 12_000_000)]
    assert layout.first_offset("00000000000006000000") == 300_000


def test_messages_become_units_in_full_size_files(broker):
    for number in range(18):
        broker.send("orders", 3, Message(b"%d" % number, tags="TagA"))
    broker.flush_views()
    first, second = (content(broker.disk, f"{DIRECTORY}/{start:020d}") for start in (0, 320))
    assert (len(first), len(second)) == (320, 320)
    seed = broker.queue("orders", 3).view.seed
    assert are_whole(first, seed, 0)
    assert are_whole(second[:40], seed, 16)
    for position, size, code in (*READ_UNIT.iter_unpack(first), *READ_UNIT.iter_unpack(second[:40])):
        assert int.from_bytes(broker.log.data[position : position + 4], "big") == size
        assert code == 2598919
    assert not any(second[40:])


def test_a_queue_that_begins_in_the_middle_of_a_file_has_fillers_before():
    disk = SimDisk()
    writer = QueueFileWriter(disk, LAYOUT)
    (unit,) = stamp_in_python([(UNIT.pack(77, 100, 0), state(5, 19))])
    writer.write([UnitBatch(DIRECTORY, 19, UNIT.pack(77, 100, 0), 5)])
    assert content(disk, f"{DIRECTORY}/00000000000000000320")[:80] == FILLER * 3 + unit
    assert FILLER.hex() == "0000000000000000" + "7fffffff" + "0000000000000000"


def test_a_read_spans_files_and_names_the_first_missing_unit():
    disk = SimDisk()
    writer = QueueFileWriter(disk, LAYOUT)
    plain = b"".join(UNIT.pack(100 * number, 100, 0) for number in range(40))
    (units,) = stamp_in_python([(plain, 0)])
    writer.write([UnitBatch(DIRECTORY, 0, plain)])
    assert read_units(disk, LAYOUT, DIRECTORY, 0, 10, 25) == units[200:700]
    disk.unlink(f"{DIRECTORY}/00000000000000000320")
    with pytest.raises(CorruptionError, match=r"at queue offset 16: .* this node writes the file anew"):
        read_units(disk, LAYOUT, DIRECTORY, 0, 10, 25)


def test_a_queue_is_written_at_most_once_per_batch(broker, monkeypatch):
    broker.flush_views()
    writes: list[str] = []
    original = QueueFileWriter.write

    def counting(self, batches):
        writes.extend(batch.directory for batch in batches)
        original(self, batches)

    monkeypatch.setattr(QueueFileWriter, "write", counting)
    for number in range(9):
        broker.send("orders", number % 3, Message(b"x"))
        broker.env.advance(0.01)
    assert writes == []
    broker.flush_views()
    assert sorted(writes) == [f"consumequeue/orders/{queue_id}" for queue_id in range(3)]


def test_acknowledged_messages_can_be_read_before_and_after_queue_files_are_written(broker):
    for number in range(60):
        assert broker.send("orders", 0, Message(b"%d" % number)).outcome == "applied"
        assert broker.bodies("orders") == [b"%d" % each for each in range(number + 1)]
        if number % 7 == 0:
            broker.flush_views()


def test_an_idle_queue_keeps_no_units_in_memory(broker):
    for _ in range(100):
        broker.send("orders", 0, Message(b"x"))
    queue = broker.queue("orders")
    broker.flush_views()
    assert len(queue.view.tail) > 0
    broker.flush_views()
    assert (len(queue.view.tail), queue.view.written) == (0, 100)
    assert sum(map(sys.getsizeof, (queue, queue.view, queue.view.tail))) < 512
    assert len(broker.bodies("orders")) == 100


def test_busy_queues_together_keep_a_bounded_number_of_written_units_in_memory(monkeypatch):
    monkeypatch.setattr(consumequeue, "MAX_RESIDENT_UNITS", 2 * BUSY)
    monkeypatch.setattr(consumequeue, "MAX_QUEUES_PER_BATCH", 2)
    broker = wide(BUSY)
    for queue_id in range(BUSY):
        broker.send("orders", queue_id, *[Message(b"x")] * 9)
    broker.flush_views()
    views = [queue.view for queue in broker.machine.state.topic_table.queues()]
    assert [len(view.tail) // UNIT_BYTES for view in views if view.written] == [2, 2]


def test_open_files_are_bounded():
    disk = SimDisk()
    files = OpenFiles(disk)
    disk.mkdir("d")
    for number in range(share_of_files() + 50):
        files.get(f"d/{number}", create=True)
    assert len(files) == share_of_files()
    files.forget("d/")
    assert len(files) == 0


def test_a_full_disk_delays_queue_files_and_no_reads_or_sends(broker):
    fault = broker.disk.fail(lambda operation, path: "consumequeue" in path, errno.ENOSPC, once=False)
    broker.send("orders", 0, Message(b"a"))
    broker.env.advance(1.0)
    assert broker.bodies("orders") == [b"a"]
    done = []
    broker.machine.checkpointer.request(lambda *, saved: done.append(saved))
    broker.env.advance(1.0)
    assert done == [False]
    assert not broker.disk.exists("views/stamped-0")
    broker.disk.faults.remove(fault)
    broker.send("orders", 0, Message(b"b"))
    broker.env.advance(1.0)
    broker.checkpoint()
    assert broker.disk.exists("views/stamped-0")
    assert broker.restart().bodies("orders") == [b"a", b"b"]


def test_files_of_a_deleted_topic_are_removed_after_the_next_checkpoint(broker):
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


def test_a_reapplied_deletion_frees_the_name_of_the_topic_again():
    """A deletion sets files aside, and a start applies it again before a checkpoint drops the topic."""
    disk = SimDisk()
    writer = QueueFileWriter(disk, LAYOUT)
    for _ in range(2):
        writer.write([UnitBatch(DIRECTORY, 0, UNIT.pack(48, 100, 0))])
        writer.set_aside("orders", 48)
        assert len(disk.listdir("consumequeue")) == 1
        assert not disk.exists("consumequeue/orders")


def test_files_of_a_deleted_topic_with_the_longest_name_can_be_set_aside(tmp_path):
    """A real disk limits the length of names."""
    disk, name = OsDisk(str(tmp_path)), "%RETRY%" + "g" * 248
    writer = QueueFileWriter(disk, LAYOUT)
    writer.write([UnitBatch(queue_directory(name, 0), 0, UNIT.pack(48, 100, 0))])
    writer.set_aside(name, 1 << 40)
    [left] = disk.listdir("consumequeue")
    assert f"consumequeue/{left}" == deleted_directory(name, 1 << 40)
    assert left != deleted_directory(name + "g", 1 << 40).rpartition("/")[2]
    writer.close()


def test_a_trim_of_a_deleted_topic_takes_no_file_of_the_next_topic_of_that_name():
    """The topic is deleted and made again while the trim waits for a checkpoint."""
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 16))
    broker.node.on_trimmed(broker.machine._trimmed)
    broker.create_topic("orders")
    broker.send("orders", 0, *[Message(b"old")] * 40)
    broker.flush_views()
    position = broker.node.snapshot()
    broker.env.advance(1.0)
    stage_trim(broker, position, 40)
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


def test_a_bisection_finds_the_first_number_that_satisfies_a_condition():
    found = [first_where(3, 9, lambda number, limit=limit: number >= limit) for limit in (0, 3, 5, 8, 9, 20)]
    assert found == [3, 3, 5, 8, 9, 9]


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
    assert len(broker.machine.queues._files.files) <= share_of_files()


def test_units_appended_while_a_node_stops_start_no_writes(broker):
    broker.send("orders", 3, Message(b"0"))
    broker.run(broker.machine.close())
    written = content(broker.disk, f"{DIRECTORY}/00000000000000000000")
    broker.send("orders", 3, Message(b"1"))
    broker.env.run_blocking = None
    broker.flush_views()
    assert content(broker.disk, f"{DIRECTORY}/00000000000000000000") == written
    assert broker.bodies("orders", 3) == [b"0", b"1"]


def wide(queues: int) -> BrokerInMemory:
    """Return a broker with a message in each queue of a topic."""
    broker = BrokerInMemory()
    broker.create_topic("orders", queues)
    for queue_id in range(queues):
        broker.send("orders", queue_id, Message(b"x"))
    return broker


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stop_syncs_many_files_at_once_if_the_disk_supports_this(monkeypatch: pytest.MonkeyPatch, at_once: bool):
    broker, single = wide(30), list[str]()
    monkeypatch.setattr(broker.machine.queues._files, "sync", single.extend)
    monkeypatch.setattr(broker.disk, "sync_all", lambda: at_once)
    broker.run(broker.machine.close())
    assert (len(single) >= 60) is not at_once
    assert load_checkpoint(broker.disk) is not None
    assert broker.machine.queues.backlog == ""


def test_a_stop_whose_sync_fails_leaves_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch):
    broker = wide(30)

    def fail() -> bool:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(broker.disk, "sync_all", fail)
    broker.run(broker.machine.close())
    assert load_checkpoint(broker.disk) is None


def test_the_backlog_of_unwritten_and_unsynced_queue_files_is_reported():
    assert BrokerInMemory().machine.queues.backlog == ""
    broker = wide(300)
    queues = broker.machine.queues
    assert queues.backlog == "the files of about 512 consume queues are to be written"
    queues.flush()
    broker.env.run_ready()
    assert queues.backlog == ""
    queues.sync(lambda _: None)
    broker.env.run_ready()
    assert queues.backlog.endswith("files of consume queues are to be synced")
    broker.env.advance(60)
    assert queues.backlog == ""


def test_no_checkpoint_begins_after_the_final_checkpoint(broker):
    """A snapshot due during the stop once started a checkpoint, which ran on after the node's threads had ended."""
    broker.node.on_trimmed(broker.machine._trimmed)
    broker.send("orders", 3, Message(b"0"))
    broker.env.advance(1.0)
    broker.run(broker.machine.close())
    broker.env.advance(1.0)
    broker.env.run_blocking = None
    broker.node.snapshot()
    broker.machine.checkpointer.maybe_start(1 << 50)


@pytest.fixture
def cuts(broker) -> list[int]:
    """Let a checkpoint list all files of a queue, and return positions to trim the log at.

    There are two files of the queue between one position and the next.
    """
    broker.node.on_trimmed(broker.machine._trimmed)
    cuts = []
    for part in range(3):
        broker.send("orders", 0, *[Message(b"%d" % part)] * (2 * SMALL.units_per_file))
        cuts.append(broker.node.snapshot())
    broker.flush_views()
    broker.flush_views()
    broker.checkpoint()
    return cuts


def stage_trim(broker: BrokerInMemory, position: int, first_offset: int) -> None:
    created = broker.machine.state.topics["orders"].created_position
    broker.machine.stage_command(TrimQueues(position, (("orders", created, 0, first_offset),)), lambda _: None)


def cut_off(broker: BrokerInMemory, position: int, files: int = 2) -> None:
    """Trim the log, and the first files of the queue."""
    stage_trim(broker, position, files * SMALL.units_per_file)
    broker.node.commit()
    assert broker.node.trim(position)


def refuse_checkpoints(broker: BrokerInMemory) -> None:
    broker.disk.fail(lambda operation, path: "views/stamped" in path, errno.ENOSPC, once=False)


def files_of(broker: BrokerInMemory) -> int:
    return len(broker.disk.listdir("consumequeue/orders/0"))


def test_a_trim_removes_files_once_no_checkpoint_lists_them(broker, cuts, caplog):
    files = files_of(broker)
    cut_off(broker, cuts[0])
    broker.env.advance(5.0)
    assert files_of(broker) == files - 2
    broker.restart()
    assert "queues_rebuilt" not in caplog.text


def test_a_trim_removes_no_file_whose_checkpoint_could_not_be_saved(broker, cuts, caplog):
    files = files_of(broker)
    refuse_checkpoints(broker)
    cut_off(broker, cuts[0])
    broker.env.advance(5.0)
    assert files_of(broker) == files
    broker.disk.faults.clear()
    caplog.clear()
    broker.restart()
    assert "queues_rebuilt" not in caplog.text


def test_files_that_were_kept_are_removed_with_the_next_trim(broker, cuts):
    files = files_of(broker)
    refuse_checkpoints(broker)
    cut_off(broker, cuts[0])
    broker.env.advance(5.0)
    broker.disk.faults.clear()
    broker.machine._trimmed(cuts[0])
    broker.env.advance(5.0)
    assert files_of(broker) == files - 2


def test_a_trim_while_a_node_stops_removes_no_file_that_its_last_checkpoint_lists(broker, cuts, caplog):
    files, closed = files_of(broker), []
    broker.machine.checkpointer.close(lambda: closed.append(1))
    cut_off(broker, cuts[0])
    while not closed:
        broker.env.advance(0.1)
    broker.env.run_ready()
    assert files_of(broker) == files
    broker.restart()
    assert "queues_rebuilt" not in caplog.text


def test_a_checkpoint_removes_no_file_of_a_later_trim(broker, cuts, monkeypatch, caplog):
    """The checkpoint of the later trim is not saved yet."""
    files = files_of(broker)
    cut_off(broker, cuts[0], 2)
    cut_off(broker, cuts[1], 4)
    remove = broker.machine.queues.remove_below

    def removed_and_full(starts):
        remove(starts)
        refuse_checkpoints(broker)

    monkeypatch.setattr(broker.machine.queues, "remove_below", removed_and_full)
    broker.env.advance(5.0)
    assert files_of(broker) == files - 2
    broker.disk.faults.clear()
    caplog.clear()
    broker.restart()
    assert "queues_rebuilt" not in caplog.text
