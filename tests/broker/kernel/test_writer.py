"""Units that the broker itself writes: records and commands together, each offset used once, each outcome told once."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from struct import Struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import BusyError, LogFullError, NotLeaderError, TooLargeError
from dledger.format import HEADER_BYTES, MAX_ENTRY_BODY_BYTES, MAX_UNIT_BYTES, iter_commands
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId
from dledger_base.invariants import InvariantError
from dledger_broker.features.sending.dedup.remembered import REMEMBER_SENDS, LimitSends
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.members import SetOrdinal
from dledger_broker.kernel.store_clock import StoreClock
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.units import FixedRows, NewRecord, NotStored, Place, Stored, UnitOutcome, Unknown
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.environment import START_MS, FakeEnvironment
from dledger_broker.testing.node import MEMBERSHIP, FakeLog
from dledger_broker.testing.records import Message
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import (
    MAX_PROPERTIES_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    MessageRecord,
    decode_record,
    iter_records,
)
from dledger_remoting.topics import TopicConfig

STORE_HOST = HostAddress("10.0.0.1", 10911)
BORN_HOST = b"\x0a\x00\x00\x02\x00\x00\x04\xd2"
BORN_MS = START_MS - 5
SEGMENT_BYTES = 16 << 20
ROW = Struct(">IHQ")

Unwritten = Command | FixedRows


class Written:
    """Ready leader with topics `T1` (4 queues) and `T2` (1), a writer of its own, and the outcomes of its units."""

    def __init__(self) -> None:
        self.memory = BrokerInMemory(log=FakeLog(SEGMENT_BYTES))
        self.memory.create_topic("T1")
        self.memory.create_topic("T2", 1)
        self.writer = LogWriter(self.memory.machine, self.memory.node, self.memory.env, STORE_HOST)
        self.outcomes: list[UnitOutcome] = []

    def write(self, *records: NewRecord, commands: Sequence[Unwritten] = (), privileged: bool = False) -> None:
        told = len(self.outcomes)
        try:
            self.writer.write(records, commands, done=self.outcomes.append, privileged=privileged)
        finally:
            assert len(self.outcomes) == told, "nothing is told inside `write`"

    def outcome(self) -> UnitOutcome:
        """Return the outcome of the only unit that was written since the last call."""
        self.memory.env.run_ready()
        (outcome,) = self.outcomes
        self.outcomes.clear()
        return outcome

    def places(self) -> tuple[Place | None, ...]:
        outcome = self.outcome()
        assert isinstance(outcome, Stored)
        return outcome.places

    def entries(self) -> list[EntryMeta]:
        return [entry for entry in self.memory.log.entries if entry.kind == EntryKind.GROUP]

    def stored(self) -> list[MessageRecord]:
        """Return every record of the log, in log order."""
        log = self.memory.log
        found: list[MessageRecord] = []
        for entry in self.entries():
            data = bytes(log.data[entry.position + HEADER_BYTES : entry.end - entry.channel])
            found += iter_records(data, verify_crc=True)
        return found

    def commands_of(self, entry: EntryMeta) -> list[tuple[int, bytes]]:
        section = bytes(self.memory.log.data[entry.end - entry.channel : entry.end])
        return [(kind, bytes(payload)) for kind, payload in iter_commands(section)]

    def offsets(self) -> dict[tuple[str, int], int]:
        """Return the offsets that were handed out, by queue."""
        queues = self.memory.machine.state.topic_table.queues()
        return {(queue.topic, queue.queue_id): queue.staged_offset for queue in queues if queue.staged_offset}

    def at(self, place: Place | None) -> MessageRecord:
        assert place is not None
        data = bytes(self.memory.log.data[place.position : place.position + place.size])
        return decode_record(data, verify_crc=True)


@pytest.fixture
def written() -> Written:
    return Written()


def record(topic: str = "T1", queue_id: int = 0, body: bytes = b"body", properties: bytes = b"") -> NewRecord:
    born = {"born_ms": BORN_MS, "born_host": BORN_HOST}
    return NewRecord(topic=topic, queue_id=queue_id, body=body, properties=properties, **born)


def row_of(number: int, told: list[Sequence[int | None]] | None = None) -> FixedRows:
    """Return a row with the position of the unit's record of that number, or with 0 if the record is left out."""

    def write(payload: memoryview, positions: Sequence[int | None]) -> None:
        if told is not None:
            told.append(list(positions))
        ROW.pack_into(payload, 0, 7, 1, positions[number] or 0)

    return FixedRows(REMEMBER_SENDS, ROW.size, write)


def test_records_and_commands_of_a_unit_stand_in_one_entry(written: Written) -> None:
    before = len(written.entries())
    written.write(
        record("T1", 1, b"a"), record("T2", 0, b"b"), record("T1", 1, b"c"), commands=[SetOrdinal(3), LimitSends(9, 9)]
    )
    places = written.places()
    assert len(written.entries()) == before + 1
    assert [written.at(place).body for place in places] == [b"a", b"b", b"c"]
    assert [place.queue_offset for place in places if place] == [0, 0, 1]
    assert [kind for kind, _ in written.commands_of(written.entries()[-1])] == [24, 28]
    assert written.memory.machine.state.members.ordinal == 3


def test_a_record_reported_as_stored_can_be_read(written: Written) -> None:
    seen: list[list[bytes]] = []
    written.writer.write([record("T2", body=b"a")], done=lambda _: seen.append(written.memory.bodies("T2")))
    written.memory.env.run_ready()
    assert seen == [[b"a"]]


def test_the_size_limits_of_a_unit_are_exact(written: Written) -> None:
    largest = bytes(MAX_UNIT_BYTES - record(body=b"").size)
    written.write(record(body=largest))
    (place,) = written.places()
    assert place is not None
    assert place.size == MAX_UNIT_BYTES
    assert_refused(written, TooLargeError, record(body=largest + b"x"))
    assert_refused(written, TooLargeError, record(body=largest), commands=[LimitSends(1, 1)])
    written.write(record(properties=bytes(MAX_PROPERTIES_BYTES)))
    assert written.places()[0] is not None
    assert_refused(written, TooLargeError, record(), record(properties=bytes(MAX_PROPERTIES_BYTES + 1)))
    written.memory.log.segment_bytes = 1 << 20
    assert_refused(written, TooLargeError, record(body=bytes(1 << 20)))


def test_records_that_the_log_refuses_use_no_queue_offset_and_only_a_leader_writes(written: Written) -> None:
    for error in (BusyError("full"), LogFullError("full"), TooLargeError("large")):
        written.memory.node.stage_error = error
        assert_refused(written, type(error), record(), record("T2"), commands=[SetOrdinal(3)])
    written.memory.node.stage_error = None
    written.write(record(), record("T2"))
    assert [place.queue_offset for place in written.places() if place] == [0, 0]
    written.memory.node.step_down()
    for records in ([record()], [record("NONE")], []):
        assert_refused(written, NotLeaderError, *records)


def assert_refused(
    written: Written, error: type[Exception], *records: NewRecord, commands: Sequence[Unwritten] = ()
) -> None:
    """Check that a write raises, stages nothing, uses no offset and tells nothing."""
    offsets, end = written.offsets(), written.memory.log.end
    with pytest.raises(error):
        written.write(*records, commands=commands)
    assert written.offsets() == offsets
    written.memory.env.run_ready()
    assert written.outcomes == []
    assert written.memory.log.end == end


def test_a_record_of_an_absent_topic_or_queue_is_left_out_also_during_its_deletion(written: Written) -> None:
    written.write(record("NONE"), record("T1", 4), record("T1", -1), record("T1", 3, b"a"), record("T2", 1))
    places = written.places()
    assert [place is not None for place in places] == [False, False, False, True, False]
    assert written.at(places[3]).body == b"a"
    written.memory.machine.proposals.delete_topic("T1", lambda _: None)
    written.write(record("T1"), record("T2", body=b"b"))
    assert written.places()[0] is None
    assert [kept.body for kept in written.stored()] == [b"a", b"b"]


def test_a_topic_is_there_once_its_creation_is_applied(written: Written) -> None:
    config = TopicConfig("NEW", 1, 1)
    written.memory.machine.proposals.put_topic(config, lambda _: None)
    written.write(record("NEW", body=b"a"), commands=[PutTopic(config, START_MS)])
    assert written.places() == (None,)
    written.write(record("NEW", body=b"b"), commands=[DeleteTopic("NEW")])
    (place,) = written.places()
    assert written.at(place).body == b"b"
    follower = written.memory.restart(lead=False)
    assert follower.machine.digest() == written.memory.machine.digest()


def test_a_unit_without_valid_records_reports_no_places_and_stages_only_its_commands(written: Written) -> None:
    end = written.memory.log.end
    for records in ((), (record("NONE"), record("T1", 9))):
        written.write(*records)
        assert written.places() == (None,) * len(records)
    assert written.memory.log.end == end
    written.write(record("NONE"), commands=[SetOrdinal(3)])
    assert written.places() == (None,)
    assert written.memory.machine.state.members.ordinal == 3


def test_the_outcome_of_a_unit_is_unknown_only_if_leadership_was_lost_before(written: Written) -> None:
    written.write(record(), commands=[SetOrdinal(3)])
    written.memory.node.step_down()
    assert written.outcome() == Unknown()
    written.memory.node.lead()
    written.write(record())
    (place,) = written.places()
    assert place is not None
    assert place.queue_offset == 0, "the next leader hands out what the lost unit had"
    written.memory.node.step_down()
    written.memory.env.run_ready()
    assert written.outcomes == [], "a stored unit gets no second outcome"


def test_a_unit_whose_commands_do_not_fit_an_entry_goes_whole_into_the_next_entry(written: Written) -> None:
    first = record(body=bytes(700 << 10))
    left = MAX_ENTRY_BODY_BYTES - HEADER_BYTES - first.size
    second = record(body=bytes(left - record(body=b"").size))
    written.write(first)
    written.write(second, commands=[SetOrdinal(3)])
    written.memory.env.run_ready()
    *_, of_first, of_second = written.entries()
    assert [of_first.size - HEADER_BYTES, of_first.channel] == [first.size, 0]
    assert of_second.size - HEADER_BYTES - of_second.channel == second.size
    assert [kind for kind, _ in written.commands_of(of_second)] == [24]


def test_rows_name_the_positions_of_records_of_their_unit(written: Written) -> None:
    told: list[Sequence[int | None]] = []
    records = record(body=b"a"), record("NONE"), record("T2", body=b"c")
    written.write(*records, commands=[SetOrdinal(3), row_of(0, told), row_of(2, told)])
    first, left_out, last = written.places()
    assert first is not None
    assert last is not None
    assert left_out is None
    assert told == [[first.position, None, last.position]] * 2
    payloads = [payload for kind, payload in written.commands_of(written.entries()[-1]) if kind == REMEMBER_SENDS]
    assert payloads == [ROW.pack(7, 1, place.position) for place in (first, last)]
    told.clear()
    written.write(record("NONE"), commands=[row_of(0, told)])
    assert written.places() == (None,)
    assert told == [[None]]
    assert written.commands_of(written.entries()[-1]) == [(REMEMBER_SENDS, ROW.pack(7, 1, 0))]
    with pytest.raises(InvariantError, match="raw command"):
        written.write(record(), commands=[FixedRows(28, 4, lambda _payload, _positions: None)])


def test_a_command_that_a_member_does_not_understand_breaks_an_invariant(written: Written) -> None:
    written.memory.node.membership = Membership((*MEMBERSHIP.voters, ReplicaId("other", "00000001")))
    written.write(record(), commands=[DeleteTopic("NONE")])
    assert written.places()[0] is not None
    for command in (SetOrdinal(3), row_of(0)):
        with pytest.raises(InvariantError, match="all members understand it"):
            written.write(record(), commands=[command])


def test_a_record_with_an_invalid_field_or_a_host_beyond_ipv4_uses_no_queue_offset(written: Written) -> None:
    for wrong in ({"born_host": bytes(20)}, {"sys_flag": SYS_BORN_HOST_V6}, {"sys_flag": SYS_STORE_HOST_V6}):
        assert_refused(written, InvariantError, msgspec.structs.replace(record(), **wrong))
    assert_refused(written, struct.error, record(), msgspec.structs.replace(record(), flag=1 << 31))


def test_only_privileged_units_of_commands_may_use_the_reserve_of_a_full_disk(written: Written) -> None:
    written.memory.node.stage_error = LogFullError("full")
    written.write(commands=[SetOrdinal(3)], privileged=True)
    assert written.places() == ()
    assert_refused(written, LogFullError, commands=[LimitSends(1, 1)])
    with pytest.raises(LogFullError):
        written.write(record(), privileged=True)


def test_store_times_never_go_back(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([START_MS + 9, START_MS + 3, START_MS + 4])
    monkeypatch.setattr(FakeEnvironment, "wall_ms", lambda _: next(clock))
    written.write(record())
    written.write(record())
    written.memory.node.commit()
    stored: list[int] = []

    def fill(_position: int, now_ms: int) -> Sequence[bytes]:
        stored.append(now_ms)
        return [b"x"]

    written.writer.stage_unit(1, fill)
    written.memory.node.step_down()  # the unit that was filled is lost
    monkeypatch.undo()
    assert [each.store_timestamp for each in written.stored()] + stored == [START_MS + 9] * 3


YEAR_MS = 365 * 86_400_000


def test_a_clock_jump_is_doubted_for_a_minute_and_forgotten_by_a_new_term(monkeypatch: pytest.MonkeyPatch) -> None:
    env, ahead_ms = FakeEnvironment(), 0
    monkeypatch.setattr(FakeEnvironment, "wall_ms", lambda _: START_MS + int(env.now() * 1000) + ahead_ms)
    clock = StoreClock(env)

    def told(seconds: float, term: int = 1) -> int:
        env.advance(seconds)
        return clock.next_ms(term) - START_MS - int(env.now() * 1000)

    assert told(0) == 0
    ahead_ms = YEAR_MS
    assert [told(1), told(30)] == [0, 0], "the records of these seconds are not of another year"
    ahead_ms = 0
    assert told(1) == 0, "it jumped back, and nothing is left of it"
    ahead_ms = YEAR_MS
    assert [told(1), told(59), told(1)] == [0, 0, YEAR_MS], "what lasts is believed"
    ahead_ms = 0
    assert told(1) == YEAR_MS - 1000, "times never go back within a term"
    assert told(1, term=2) == 0


RECORDS = st.lists(st.tuples(st.sampled_from(["T1", "T2", "NONE"]), st.integers(-1, 4)), max_size=5)
Step = tuple[str, list[tuple[str, int]]]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("write"), RECORDS),
        st.tuples(st.sampled_from(["send", "turn", "refuse", "lose", "delete"]), st.just([])),
    ),
    max_size=30,
)


@given(STEPS)
def test_offsets_are_dense_and_places_are_where_the_log_has_the_records(steps: list[Step]) -> None:
    written = Written()
    memory, numbers = written.memory, count()
    told: list[tuple[list[bytes], list[UnitOutcome]]] = []

    def write(places: list[tuple[str, int]]) -> None:
        records = [record(topic, queue_id, b"w%d" % next(numbers)) for topic, queue_id in places]
        outcome: list[UnitOutcome] = []
        written.writer.write(records, [SetOrdinal(1)] * (len(records) % 2), done=outcome.append)
        told.append(([each.body for each in records], outcome))

    for what, places in steps:
        match what:
            case "write":
                write(places)
            case "send" if memory.machine.topic("T1") is not None:
                memory.send("T1", 1, Message(b"s%d" % next(numbers)))
            case "turn":
                memory.env.run_ready()
            case "refuse":
                memory.node.stage_error = BusyError("busy")
                with pytest.raises(BusyError):
                    write([("T2", 0)])
                memory.node.stage_error = None
            case "lose":
                memory.node.step_down()
                memory.node.lead()
            case "delete":
                memory.machine.proposals.delete_topic("T1", lambda _: None)
    memory.env.run_ready()
    stored = {each.body: each for each in written.stored()}
    assert_dense(list(stored.values()))
    for bodies, outcome in told:
        assert len(outcome) == 1, "an outcome is told exactly once"
        (each,) = outcome
        if isinstance(each, Stored):
            assert [body in stored for body in bodies] == [place is not None for place in each.places]
            for body, place in zip(bodies, each.places, strict=True):
                if place is not None:
                    assert written.at(place) == stored[body]
                    assert place.position == stored[body].physical_offset
                    assert place.queue_offset == stored[body].queue_offset


def assert_dense(records: Sequence[MessageRecord]) -> None:
    """Check that the records, in log order, have the offsets of their queues from 0 on."""
    offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for each in records:
        offsets[each.topic, each.queue_id].append(each.queue_offset)
    for of_queue in offsets.values():
        assert of_queue == list(range(len(of_queue)))


def test_units_dropped_by_a_full_disk_leave_no_gap_in_queue_offsets() -> None:
    broker = BrokerInMemory()
    broker.create_topic("T1")
    told: list[UnitOutcome] = []
    for number in (2, 1):
        records = [NewRecord(topic="T1", queue_id=0, body=b"x", born_ms=0, born_host=BORN_HOST)] * number
        broker.writer.write(records, done=told.append)
    broker.node.drop_staged()
    assert [type(outcome) for outcome in told] == [NotStored, NotStored]
    broker.send("T1", 0, Message(b"next"))
    assert broker.bodies("T1") == [b"next"]
    assert broker.queue("T1").next_offset == 1
