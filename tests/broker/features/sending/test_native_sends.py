"""Native path of sends and its twin in Python: the same log, answers and counts, whatever producers send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_broker import NODE_ID, FakeClient, ServedBroker, bodies, make_served_broker, records, send_ext

from dledger.errors import LogFullError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.sending.native_sends import NativeSendUnit
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import ResponseCode
from dledger_remoting.frame import join_frame, split_frames
from dledger_remoting.record import iter_records
from dledger_remoting.topics import TopicConfig

native = pytest.importorskip("dledger_native", reason="the native part is not built (make native)")

KEY = "7F0000010000{:020X}"
USUAL_FORMS = [
    "UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
    "KEYS\x01a b\x02UNIQ_KEY\x01{key}\x02TAGS\x01T\x02",
    "UNIQ_KEY\x01{key}",
]
FORMS = [
    *USUAL_FORMS * 3,
    "UNIQ_KEY\x01{key}\x02DELAY\x013\x02",
    "UNIQ_KEY\x01{key}\x02REAL_TOPIC\x01x\x02",
    "UNIQ_KEY\x01a-{key}\x02",
    "UNIQ_KEY\x01ä{key}\x02",
    'UNIQ_KEY\x01{key}\x02K\x01\\"/\n\t\x7f\x02',
    "UNIQ_KEY\x01{key}\x02UNIQ_KEY\x01{key}\x02",
]
NUMBERS = ["0", "1", "2", "3", "4", "-1", "007", "+1", " 1", "1.0", "1e1", "-0", "", "x", "2147483647", "2147483648"]
CHANGES: list[dict[str, str | None]] = [
    *[{"e": number} for number in NUMBERS],
    *[{letter: number} for letter in "dfhjl" for number in NUMBERS],
    *[{"g": number} for number in (*NUMBERS, "9223372036854775807", "9223372036854775808", "-9223372036854775808")],
    *[{letter: None} for letter in "abcdefghi"],
    *[{letter: text} for letter in "km" for text in ("true", "false", "1", "True", "")],
    *[{"n": text} for text in ("broker-a", "", "ä")],
    *[{"b": topic} for topic in ("T2", "Ä", "", "T1 ", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "NONE")],
    *[{name: "true"} for name in ("idempotent", "o", "ab")],
    *[{"writeAlias": "1"}, {"a": 'P"G'}, {"a": "P\\G"}, {"i": "\x01\x02"}],
]

MORE: list[dict[str, object]] = [
    *[{}] * 6,
    {"version": 479, "serializeTypeCurrentRPC": "JSON"},
    {"remark": "r"},
    {"language": "GO"},
]


class Recorder(FakeClient):
    """Client that keeps its answers as they came."""

    def __init__(self, broker: ServedBroker, key: str) -> None:
        super().__init__(broker, key)
        self.frames: list[bytes] = []
        self.alias = None

    def answer(self, parts: Any) -> None:
        self.frames.append(b"".join(parts))
        super().answer(parts)


def make_broker(part: Any, **keys: object) -> ServedBroker:
    memory = BrokerInMemory()
    memory.env.native = part
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"), **keys)
    broker = make_served_broker(config, memory)
    for topic in ("T1", "T2"):
        broker.memory.create_topic(topic)
    return broker


def sending(ext: dict[str, str], opaque: int, flag: int = 0, code: int = 310, **more: object) -> dict[str, Any]:
    return {"code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque, **more}


def ext_of(number: int, form: str = USUAL_FORMS[0], **changed: str | None) -> dict[str, str]:
    fields = send_ext("T1", number % 4, form.format(key=KEY.format(number))) | changed
    return {name: value for name, value in fields.items() if value is not None}


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Draw the header of a send, which is mostly usual in most ways."""
    number = draw(st.integers(0, 99))
    changed = draw(st.sampled_from([{}] * 60 + CHANGES))
    ext = ext_of(number, draw(st.sampled_from(FORMS)), **changed)
    code = draw(st.sampled_from([310] * 8 + [320] * 5 + [10, 325, 11, -1]))
    flag = draw(st.sampled_from([0] * 12 + [2, 2, 3, 1, 6]))
    more = draw(st.sampled_from(MORE))
    command = sending(ext, number, flag, code, **more)
    if draw(st.integers(0, 9)) == 0:
        command = dict(draw(st.permutations(list(command.items()))))
    separators = draw(st.sampled_from([(",", ":")] * 9 + [(", ", ": ")]))
    text = json.dumps(command, separators=separators, ensure_ascii=draw(st.booleans()))
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", '"', "\\", "{", "}", ",", "\\u00", "0", " "])) + text[at + 1 :]
    return text.encode()


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Draw the body of a batch, which is mostly usual."""
    messages = []
    for number in range(draw(st.integers(1, 4))):
        form = draw(st.sampled_from(USUAL_FORMS * 3 + FORMS + ["WAIT\x01true\x02"]))
        properties = form.format(key=KEY.format(number)).encode()
        messages.append(BatchMessage(draw(st.integers(-1, 1)), draw(st.binary(max_size=9)), properties))
    data = bytearray(encode_batch(messages))
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


BODIES = st.sampled_from([b"", b"x", b"body" * 30]) | batches()
FRAMES = st.tuples(headers(), BODIES, st.sampled_from([0] * 15 + [1])).map(
    lambda one: join_frame(one[2], one[0], one[1])
)
TURNS = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.lists(FRAMES, min_size=1, max_size=4)), max_size=3), max_size=3
)


def play(broker: ServedBroker, turns: list[list[tuple[int, list[bytes]]]]) -> list[object]:
    """Handle turns of reads, and return the log, the counts and the clients' answers, or the type of the error."""
    clients = [Recorder(broker, f"client/{number}") for number in range(2)]
    usual = join_frame(0, json.dumps(sending(ext_of(1), 1), separators=(",", ":")).encode(), b"first")
    for turn in [[(0, [usual])], *turns]:
        reads = []
        for number, frames in turn:
            data = b"".join(frames)
            reads.append((clients[number], data, split_frames(data, len(data))[0]))
        try:
            broker.service.requests.on_reads(reads)
        except Exception as error:
            return [type(error)]
        broker.settle()
    counters = broker.counters
    return [
        bytes(broker.memory.node.log.data),
        dict(counters.sizes.by_topic),
        [(client.frames, client.in_flight, client.settled) for client in clients],
        (counters.requests, counters.messages_in, counters.bytes_in),
    ]


@pytest.fixture(autouse=True)
def repeatable_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the queues that the broker chooses, and the keys that it makes, the same in both runs."""
    monkeypatch.setattr("dledger_broker.features.sending.send.randrange", lambda count: count - 1)
    monkeypatch.setattr("dledger_remoting.ids.UniqueKeyGenerator.next", lambda _self, now_ms: f"{now_ms:032X}")


@pytest.fixture(autouse=True)
def faults() -> Iterator[list[str]]:
    """Provide the functions of which a fault was reported. A test of a fault takes it out."""
    told: list[str] = []
    native.on_panic(lambda function, _said: told.append(function))
    yield told
    native.panic_at_next("")
    assert not told


@given(TURNS)
def test_producers_get_the_same_answers_with_and_without_the_native_part(
    turns: list[list[tuple[int, list[bytes]]]],
) -> None:
    assert play(make_broker(native), turns) == play(make_broker(None), turns)


class Staged:
    """Broker that has stored its first send. `units` are the contexts that were staged since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = make_broker(native)
        self.client = Recorder(self.broker, "client/0")
        self.number = 0
        self.send()
        self.broker.settle()
        self.units: list[object] = []
        node = self.broker.memory.node
        stage = node.stage

        def noted(*arguments: Any, context: object = None, **keywords: Any) -> int:
            self.units.append(context)
            return stage(*arguments, context=context, **keywords)

        monkeypatch.setattr(node, "stage", noted)

    def frame(
        self, body: bytes = b"x", form: str = USUAL_FORMS[0], flag: int = 0, code: int = 310, **changed: str
    ) -> bytes:
        self.number += 1
        command = sending(ext_of(self.number, form, **({"e": "0"} | changed)), self.number, flag, code)
        return join_frame(0, json.dumps(command, separators=(",", ":")).encode(), body)

    def send(self, *frames: bytes) -> None:
        self.client.feed(b"".join(frames or (self.frame(),)))

    def turn(self, *frames: bytes) -> None:
        """Send frames, and let everything happen that is ready then."""
        self.send(*frames)
        self.broker.settle()

    def reads(self, data: bytes) -> list[tuple[Recorder, bytes, Any]]:
        """Return frames as a read of this client."""
        return [(self.client, data, split_frames(data, len(data))[0])]

    @property
    def unit(self) -> NativeSendUnit:
        """The only unit that was staged."""
        [unit] = self.units
        assert isinstance(unit, NativeSendUnit)
        return unit

    @property
    def stored(self) -> list[bytes]:
        """Bodies in the first queue, without that of the first send."""
        return bodies(self.broker.client("reader").pull("T1", maxMsgNums="64"))[1:]

    @property
    def codes(self) -> list[int]:
        """Codes of all answers, without that to the first send."""
        return [answer.code for answer in self.client.answers[1:]]


def bodies_of(staged: Staged, unit: Any) -> list[bytes]:
    begin, end = unit.extent
    return [record.body for record in iter_records(bytes(staged.broker.memory.node.log.data[begin:end]))]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Staged:
    return Staged(monkeypatch)


def test_ordinary_sends_of_a_turn_are_one_unit_of_the_native_part(staged: Staged) -> None:
    staged.send(staged.frame(b"1"), staged.frame(b"2"))
    staged.turn(staged.frame(b"3", flag=2))
    unit = staged.unit
    assert (unit.requests, unit.settled, staged.client.settled, staged.client.in_flight) == (3, True, 1, 0)
    assert staged.codes == [0, 0]
    assert staged.stored == [b"1", b"2", b"3"]


def batch_of(*bodies: bytes, form: str = USUAL_FORMS[0]) -> bytes:
    keys = [form.format(key=KEY.format(number)).encode() for number in range(len(bodies))]
    return encode_batch(BatchMessage(0, body, key) for body, key in zip(bodies, keys, strict=True))


@pytest.mark.parametrize("kind", [{"code": 320}, {"m": "true"}])
def test_batches_go_into_the_unit_of_the_native_part_with_other_sends(staged: Staged, kind: dict[str, Any]) -> None:
    before = staged.broker.counters.messages_in
    staged.turn(staged.frame(b"1"), staged.frame(batch_of(b"2", b"3"), **kind), staged.frame(b"4"))
    unit = staged.unit
    assert unit.requests == 3
    assert staged.broker.counters.messages_in - before == 4
    assert staged.stored == [b"1", b"2", b"3", b"4"]
    assert staged.codes == [0, 0, 0]
    ids = staged.client.answers[2].ext["msgId"].split(",")
    assert [int(one[16:], 16) for one in ids] == [
        record.physical_offset for record in records(staged.broker.client("reader").pull("T1", maxMsgNums="64"))[2:4]
    ]


def test_a_batch_with_one_unusual_message_is_left_to_the_twin_as_a_whole(staged: Staged) -> None:
    bodies = batch_of(b"2") + batch_of(b"3", form="WAIT\x01true\x02")
    staged.turn(staged.frame(b"1"), staged.frame(bodies, code=320), staged.frame(b"4"))
    assert [(type(unit).__name__, unit.requests) for unit in staged.units] == [("NativeSendUnit", 1), ("SendUnit", 2)]
    assert staged.stored == [b"1", b"2", b"3", b"4"]


def test_a_batch_that_is_not_sound_is_refused_by_the_twin(staged: Staged) -> None:
    sound = batch_of(b"1", b"2")
    unsound = [sound[:-1], sound + b"\0", sound[:19] + b"\x7f" + sound[20:], b""]
    unsound += [number.to_bytes(4, "big") + sound[4:] for number in (0, 2**31 - 1, 2**31, 2**32 - 1)]
    staged.turn(*(staged.frame(body, code=320) for body in unsound))
    assert staged.codes == [ResponseCode.MESSAGE_ILLEGAL] * len(unsound)
    assert staged.units == []


def test_batches_that_the_native_part_hands_back_are_stored_as_batches(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger_broker.features.quotas.gate.QuotaGate.limits", lambda _self, topics: True)
    staged.turn(staged.frame(batch_of(b"1", b"2"), code=320), staged.frame(batch_of(b"3"), m="true"))
    assert [type(unit).__name__ for unit in staged.units] == ["SendUnit"]
    assert staged.stored == [b"1", b"2", b"3"]


def test_the_native_part_leaves_reads_that_begin_with_another_request(staged: Staged) -> None:
    sends = staged.broker.service.parts[SendRequests]._plain.native
    data = staged.frame(code=11) + staged.frame()
    assert sends.take(staged.reads(data), 0, 0, 0.0) == (0, 0, False)
    assert sends._run is None


def test_sends_keep_their_order_around_an_unusual_send(staged: Staged) -> None:
    staged.turn(staged.frame(b"1"), staged.frame(b"2", "UNIQ_KEY\x01k\x02NEW\x01form\x02"), staged.frame(b"3"))
    assert [type(unit).__name__ for unit in staged.units] == ["NativeSendUnit", "SendUnit"]
    staged.turn(staged.frame(b"4"))
    assert isinstance(staged.units[-1], NativeSendUnit)
    assert staged.stored == [b"1", b"2", b"3", b"4"]


def test_a_unit_is_staged_before_it_becomes_too_large(staged: Staged) -> None:
    bodies = [bytes([number]) * 200_000 for number in range(7)]
    staged.turn(*(staged.frame(body) for body in bodies))
    assert [unit.requests for unit in staged.units if isinstance(unit, NativeSendUnit)] == [2, 2, 2, 1]
    assert [body for unit in staged.units for body in bodies_of(staged, unit)] == bodies


def test_a_batch_that_needs_the_next_unit_is_read_once(staged: Staged) -> None:
    known, asked = staged.broker.service.parts[SendRequests]._targets.known, list[str]()
    properties = USUAL_FORMS[0].format(key=KEY.format(1)).encode()
    batch = encode_batch([BatchMessage(0, bytes(1 << 20), properties)] * 9)
    data = staged.frame() + staged.frame(batch, i="", code=320)
    reads = staged.reads(data)

    def counted(topic: str) -> object:
        asked.append(topic)
        return known(topic)

    places = []
    for place in (0, 1):
        run = native.SendRun()
        places.append(run.take(reads, 0, place, 0.0, counted, 1 << 30, 512 << 10))
    assert places == [(0, 1, True), (1, 0, False)]
    assert (run.count, run.messages) == (1, 9)
    run = native.SendRun()
    run.take([(staged.client, data, reads[0][2][:1])], 0, 0, 0.0, counted, 1 << 30, 512 << 10)
    asked.clear()
    assert run.take(reads, 0, 1, 0.0, counted, 1 << 30, 512 << 10) == (0, 1, True)
    assert not asked, "its header was read"


def test_sends_to_many_topics_in_a_turn_look_up_each_topic_once(staged: Staged) -> None:
    """A test of `native/src/places.rs` shows that a lookup takes no longer with all the other topics."""
    asked = list[str]()
    target = staged.broker.service.parts[SendRequests]._targets.known("T1")
    names = [f"T{number}" for number in range(1000)]

    def known(topic: str) -> object:
        asked.append(topic)
        return target

    data = b"".join(staged.frame(b=name) for name in names * 2)
    run = native.SendRun()
    reads = staged.reads(data)
    assert run.take(reads, 0, 0, 0.0, known, 1000, 1 << 30) == (1, 0, False)
    assert asked == names
    assert [count for _, count, _ in run.targets()] == [2] * len(names)
    _, runs = run.encode(0, 1, bytes(8), b"")
    assert [queue.queue_id for queue, _, _ in runs] == [0], "all of them are the one topic's queue"


END = "the end of encode"


@pytest.mark.parametrize(("function", "at"), [*((one, one) for one in ("send", "encode", "targets")), ("encode", END)])
def test_after_a_fault_of_the_native_part_python_stores_the_sends(
    staged: Staged, faults: list[str], function: str, at: str
) -> None:
    native.panic_at_next(at)
    staged.turn(staged.frame(b"1"), staged.frame(b"2", flag=2), staged.frame(b"3"))
    staged.turn(staged.frame(b"4"))
    assert [faults.pop()] == [function]
    kinds = [type(unit).__name__ for unit in staged.units]
    assert kinds[-2:] == ["SendUnit", "NativeSendUnit"], "the next ones are native again"
    assert staged.stored == [b"1", b"2", b"3", b"4"]
    assert (staged.codes, staged.client.in_flight) == ([0, 0, 0], 0)


def test_a_fault_of_the_native_part_after_the_commit_is_answered_with_an_error(
    staged: Staged, faults: list[str]
) -> None:
    native.panic_at_next("answers")
    staged.turn(staged.frame(b"1"), staged.frame(b"2"))
    staged.turn(staged.frame(b"3"))
    assert [faults.pop()] == ["answers"]
    assert staged.stored == [b"1", b"2", b"3"]
    assert len(staged.codes) == 3
    assert ResponseCode.SUCCESS not in staged.codes[:2]
    assert (staged.codes[2], staged.client.in_flight) == (ResponseCode.SUCCESS, 0)


def test_an_offset_that_no_record_can_have_is_refused_and_nothing_is_used(staged: Staged) -> None:
    target = staged.broker.service.parts[SendRequests]._targets.known("T1")
    data = staged.frame()
    reads = staged.reads(data)
    queue = target.by_id[0]
    for staged_offset, position in ((2**63 - 1, 0), (5, 2**64 - 1)):
        queue.staged_offset = staged_offset
        run = native.SendRun()
        run.take(reads, 0, 0, 0.0, lambda _topic: target, 1000, 1000)
        with pytest.raises(OverflowError):
            run.encode(position, 1, bytes(8), b"")
        assert queue.staged_offset == staged_offset


def test_each_send_that_the_log_refuses_is_answered(staged: Staged) -> None:
    staged.broker.memory.node.stage_error = LogFullError("the disk of this node is full")
    staged.turn(staged.frame(), staged.frame())
    assert len(staged.codes) == 2
    assert ResponseCode.SUCCESS not in staged.codes
    assert staged.client.in_flight == 0


def test_sends_whose_leader_was_deposed_are_told_that_they_may_be_stored(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged.broker.memory.node, "commit", lambda: None)
    staged.turn(staged.frame(), staged.frame())
    unit = staged.unit
    unit.dropped(None)
    unit.dropped(None)
    unit.applied()
    assert len(staged.codes) == 2
    assert all("may be stored" in answer.remark for answer in staged.client.answers[1:])


def test_a_send_overtaken_by_a_deletion_goes_to_the_next_topic_of_that_name(staged: Staged) -> None:
    proposals, node = staged.broker.memory.machine.proposals, staged.broker.memory.node
    staged.send(staged.frame(b"late"))
    proposals.delete_topic("T1", lambda _: None)
    proposals.put_topic(TopicConfig("T1", 4, 4), lambda _: None)
    node.commit()
    node.commit()
    staged.broker.settle()
    assert staged.codes == [ResponseCode.SUCCESS]
    assert bodies(staged.broker.client("reader").pull("T1")) == [b"late"]


def test_a_change_of_a_topic_within_a_turn_applies_to_the_next_send(staged: Staged) -> None:
    """Entries may be applied between two reads of a turn, so what was found out of a topic counts for one read."""
    proposals, node = staged.broker.memory.machine.proposals, staged.broker.memory.node
    staged.send(staged.frame(b"1"))
    proposals.put_topic(TopicConfig("T1", 4, 4, perm=4), lambda _: None)
    node.commit()
    staged.turn(staged.frame(b"2"), staged.frame(b"3"))
    assert staged.codes == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION]
    assert staged.stored == [b"1"]


def test_sends_to_a_topic_with_a_quota_are_charged_one_by_one(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = "dledger_broker.features.quotas.gate.QuotaGate"
    counted: list[tuple[str, int]] = []
    monkeypatch.setattr(f"{admission}.limits", lambda _self, topics: "T1" in set(topics))
    monkeypatch.setattr(
        f"{admission}.admits", lambda _self, _request, topic, count, *_: counted.append((topic, count)) or True
    )
    staged.send(staged.frame(b"1"), staged.frame(b"2"))
    staged.turn(staged.frame(b"3", "UNIQ_KEY\x01k\x02NEW\x01form\x02"))
    assert counted == [("T1", 1)] * 3
    assert [type(unit).__name__ for unit in staged.units] == ["SendUnit"]
    assert staged.stored == [b"1", b"2", b"3"]
    assert (staged.codes, staged.client.in_flight) == ([0, 0, 0], 0)


def test_sends_of_the_native_part_gather_with_sends_of_the_twin(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = staged.broker.memory.node.commit
    monkeypatch.setattr(staged.broker.memory.node, "commit", lambda: None)
    staged.turn(*(staged.frame() for _ in range(8)))
    for _ in range(3):
        staged.turn()
    assert len(staged.units) == 1
    staged.turn(staged.frame(b"y", "UNIQ_KEY\x01k\x02NEW\x01form\x02"))
    assert [unit.requests for unit in staged.units] == [8, 3, 1]
    commit()
    staged.broker.settle()
    assert staged.codes == [0] * 12


def test_sends_through_an_alias_or_behind_a_forwarded_request_are_left_to_the_twin(staged: Staged) -> None:
    run = native.SendRun()
    data = staged.frame()
    frames = split_frames(data, len(data))[0]
    for name, value in (("alias", 1), ("forwards", 1)):
        other = Recorder(staged.broker, f"client/{name}")
        setattr(other, name, value)
        assert run.take([(other, data, frames)], 0, 0, 0.0, pytest.fail, 1000, 1000) == (0, 0, False)
    assert run.count == 0


def test_the_native_part_leaves_unusual_numbers_to_the_twin(staged: Staged) -> None:
    for number in NUMBERS:
        run, data = native.SendRun(), staged.frame(h=number)
        target = staged.broker.service.parts[SendRequests]._targets.known
        run.take(staged.reads(data), 0, 0, 0.0, target, 1000, 1000)
        assert run.count == (number in {"0", "1", "2", "3", "4", "-1", "2147483647"}), number


def test_frame_bounds_beyond_the_data_are_never_read(staged: Staged) -> None:
    """Bytes behind the data are no send: bounds that do not fit the bytes are never read."""
    run, data = native.SendRun(), staged.frame()
    for bounds in ((8, 9_999, 10_000, 0), (8, 4, 20, 0), (2**40, 2**41, 2**42, 0)):
        assert run.take([(staged.client, data, [bounds])], 0, 0, 0.0, pytest.fail, 1000, 1000) == (0, 0, False)
