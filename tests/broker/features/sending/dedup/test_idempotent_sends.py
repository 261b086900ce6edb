"""Opted-in sends: a repetition always gets the first answer and stores nothing, and all else is stored."""

from __future__ import annotations

import asyncio

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, make_served_broker, send_ext, submit

from dledger.errors import CorruptionError
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.sending.dedup import idempotent
from dledger_broker.features.sending.dedup.remembered import REMEMBERED
from dledger_broker.features.sending.send import SendRequests
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command
from tests.broker.features.quotas.quota_calls import stored
from tests.broker.features.sending.dedup.remembering import WINDOW_MS, keyed, remembering
from tests.broker.features.sending.majority import Majority

ONE = "UNIQ_KEY\x01K1\x02TAGS\x01a\x02color\x01red\x02"
LONG_NAMES = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag"),
    *("properties", "batch"),
)


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker that leads, has topic T1, and remembers sends for `WINDOW_MS`."""
    return remembering(make_broker())


def send(
    broker: ServedBroker, body: bytes = b"hello", properties: str = ONE, topic: str = "T1", **fields: str
) -> RemotingCommand:
    return broker.client().send_message(topic, body, properties=properties, **{"idempotent": "true", **fields})


def start(client: FakeClient, body: bytes = b"x", properties: str = ONE) -> int:
    """Hand in an idempotent send, and return its opaque."""
    return client.send(310, send_ext("T1", properties=properties, idempotent="true"), body)


def read_from_disk(broker: ServedBroker, body: bytes) -> RemotingCommand:
    """Return the answer to an idempotent send whose candidates are read from the disk."""
    return broker.client().call_from_disk(310, send_ext("T1", properties=ONE, idempotent="true"), body)


def place(answer: RemotingCommand) -> tuple[str, str, str]:
    assert answer.code == 0, answer.remark
    return answer.ext["msgId"], answer.ext["queueId"], answer.ext["queueOffset"]


def batch(*keys: str) -> bytes:
    return encode_batch([BatchMessage(0, b"body", keyed(key).encode()) for key in keys])


def long_form(ext: dict[str, str]) -> dict[str, str]:
    names = dict(zip("abcdefghim", LONG_NAMES, strict=True))
    return {names.get(letter, letter): value for letter, value in ext.items()}


def send_batch(broker: ServedBroker, body: bytes, **fields: str) -> RemotingCommand:
    return broker.client().call(320, send_ext("T1", **{"m": "true", "idempotent": "true", **fields}), body)


def test_a_repetition_gets_the_first_answer_and_stores_nothing(broker: ServedBroker):
    """Properties that the broker owns do not change the identity of a send."""
    send(broker, properties=keyed("K0"))
    first = send(broker)
    repetitions = ({"e": "2", "g": "1700000009999"}, {"i": f"{ONE}REAL_QID\x019\x02"}, {"i": f"POP_CK\x01x\x02{ONE}"})
    for fields in repetitions:
        again = send(broker, **fields)
        assert place(again) == place(first)
        assert again.ext["transactionId"] == first.ext["transactionId"] == "K1"
    assert (stored(broker), broker.counters.idempotent_repeats) == (2, 3)


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"other"},
        {"body": b""},
        {"properties": ONE.replace("red", "blue")},
        {"properties": ONE.replace("K1", "K2")},
        {"h": "1"},
        {"f": "1"},
        {"j": "1"},
        {"a": "PG2"},
        {"topic": "T2"},
    ],
    ids=str,
)
def test_a_send_that_differs_is_no_repetition(make_broker: MakeBroker, other: dict[str, str]):
    broker = remembering(make_broker(topics=("T1", "T2")))
    first = send(broker)
    second = send(broker, **other)
    assert place(second)[0] != place(first)[0]
    assert stored(broker) + stored(broker, "T2") == 2
    assert place(send(broker, **other)) == place(second)
    assert place(send(broker)) == place(first)


@pytest.mark.parametrize(
    ("topic", "fields"),
    [
        ("T1", {"idempotent": "false"}),
        ("T1", {"properties": "color\x01red\x02"}),
        ("%RETRY%CG", {"j": "1"}),
        ("RMQ_SYS_TRACE_TOPIC", {"j": "1"}),
    ],
)
def test_sends_without_opt_in_or_to_retry_and_system_topics_are_stored_each_time(broker, topic, fields):
    if topic == "RMQ_SYS_TRACE_TOPIC":
        broker.memory.create_topic(topic)
    assert [send(broker, topic=topic, **fields).code for _ in range(2)] == [0, 0]
    assert stored(broker, topic) == 2


def test_a_topic_attribute_opts_in_for_clients_without_the_flag(broker: ServedBroker):
    header = {"topic": "T3", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    fields = {"topicFilterType": "SINGLE_TAG", "attributes": "+idempotent=true"}
    assert broker.client().call(17, {**header, **fields}).code == 0
    first = send(broker, topic="T3", idempotent="")
    assert place(send(broker, topic="T3", idempotent="")) == place(first)
    assert stored(broker, "T3") == 1


def test_a_repetition_waits_for_the_outcome_of_its_send_in_flight(broker: ServedBroker):
    waiting = [(client, start(client)) for client in [broker.client() for _ in range(3)]]
    broker.settle()
    assert [client.has_answer(opaque) for client, opaque in waiting] == [True, False, False]
    broker.advance(0.02)
    assert len({place(client.answered(opaque)) for client, opaque in waiting}) == 1
    assert (stored(broker), broker.counters.idempotent_waits) == (1, 2)


def test_no_other_send_waits_for_an_idempotent_send_in_flight(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch):
    majority, other = Majority(broker, monkeypatch), broker.client()
    start(broker.client())
    submit(other, 310, send_ext("T1", properties=keyed("K2")), b"not opted in")
    start(broker.client())
    opaque = submit(other, 310, send_ext("T1", properties=keyed("K3")), b"not opted in")
    majority.has_it()
    assert place(other.answered(opaque))[2] == "2"
    assert broker.counters.idempotent_waits == 1


def test_a_message_of_another_topic_or_group_is_no_repetition(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch):
    broker = remembering(make_broker(topics=("T1", "T2")))
    for topic in ("T1", "T2"):
        send(broker, topic=topic, properties=keyed("first"))  # later sends take the fast path
    majority, read = Majority(broker, monkeypatch), b""
    for opaque, (topic, group) in enumerate((("T1", "PG"), ("T2", "PG"), ("T1", "other"))):
        ext = send_ext(topic, properties=ONE, idempotent="true", a=group)
        read += encode_command(RemotingCommand(310, opaque=opaque, ext=ext, body=b"x"))
    broker.client().feed(read)
    broker.settle()
    majority.has_it()
    assert broker.counters.idempotent_waits == 0
    assert (stored(broker), stored(broker, "T2")) == (3, 2)


def test_a_repetition_of_a_send_with_an_unknown_outcome_has_an_unknown_outcome(broker, monkeypatch):
    with monkeypatch.context() as patch:
        majority, waiting = Majority(broker, patch), []
        for client in (broker.client(), broker.client()):
            waiting.append((client, start(client)))
            broker.settle()
        broker.advance(broker.config.quorum_timeout_ms / 1000 + 0.2)
        for client, opaque in waiting:
            answer = client.answered(opaque)
            assert (answer.code, answer.ext.get("outcome")) == (ResponseCode.SYSTEM_ERROR, "unknown")
    majority.has_it()
    third = send(broker, b"x")
    assert broker.memory.machine.state.table(REMEMBERED).find(0) == []
    assert (place(third)[2], stored(broker)) == ("0", 1)


def test_a_repetition_after_a_failover_finds_a_stored_send_and_stores_a_lost_send(broker: ServedBroker):
    first = send(broker)
    client = broker.client()
    lost = start(client, b"lost", keyed("K2"))
    broker.service.parts[SendRequests].gathering.flush()
    broker.memory.node.step_down()
    assert client.answered(lost).ext["outcome"] == "unknown"
    broker.memory.node.lead()
    broker.settle()
    assert place(send(broker)) == place(first)
    again = send(broker, b"lost", keyed("K2"))
    assert place(again)[2] == "1"
    assert place(send(broker, b"lost", keyed("K2"))) == place(again)
    assert stored(broker) == 2


def test_a_send_refused_by_a_full_disk_is_stored_at_once_when_repeated(client: FakeClient):
    """A repetition waits for the outcome of a send in flight, but a refused send has its outcome."""
    send(client.broker)
    refused = start(client, b"again", keyed("K2"))
    client.broker.service.parts[SendRequests].gathering.flush()
    client.broker.memory.node.drop_staged()
    answer = client.answered(refused)
    assert (answer.code, answer.ext.get("outcome")) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    assert (answer.remark or "").startswith("nothing was stored: ")
    again = send(client.broker, b"again", keyed("K2"))
    assert (place(again)[2], stored(client.broker)) == ("1", 2)


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_another_node_recognizes_repetitions_of_stored_sends(broker: ServedBroker, from_snapshot: bool):
    first = send(broker)
    both = send_batch(broker, batch("K5", "K6"))
    if from_snapshot:
        broker.memory.node.snapshot()
    third = send(broker, b"later", keyed("K3"))
    again = make_served_broker(broker.config, broker.memory.restart())
    assert again.memory.machine.digest() == broker.memory.machine.digest()
    assert place(send(again)) == place(first)
    assert place(send(again, b"later", keyed("K3"))) == place(third)
    assert place(send_batch(again, batch("K5", "K6"))) == place(both)
    assert stored(again) == 4


def test_a_batch_is_recognized_only_as_a_whole(broker: ServedBroker):
    first = send_batch(broker, batch("A", "B", "C"))
    assert len(place(first)[0].split(",")) == 3
    assert place(send_batch(broker, batch("A", "B", "C"), e="3")) == place(first)
    assert stored(broker) == 3
    for other in (("A", "B"), ("A", "B", "D"), ("C", "B", "A")):
        before = stored(broker)
        assert send_batch(broker, batch(*other)).code == 0
        assert stored(broker) == before + len(other)
    alone = send(broker, b"body", keyed("A"))
    assert stored(broker) == 12
    assert place(send(broker, b"body", keyed("A"))) == place(alone)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_repetition_in_another_request_form_is_recognized(broker: ServedBroker, is_batch: bool):
    """The first send takes the fast path and the second send the general path, and the other way round."""
    body = batch("A", "B") if is_batch else b"hello"
    ext = send_ext("T1", 0, "" if is_batch else ONE, m=str(is_batch).lower(), idempotent="true")
    long_ext = long_form(ext)
    first = broker.client().call(310, ext, body)
    assert place(broker.client().call(10, long_ext, body)) == place(first)
    other = broker.client().call(10, {**long_ext, "producerGroup": "other"}, body)
    assert place(broker.client().call(310, {**ext, "a": "other"}, body)) == place(other) != place(first)


def test_a_repetition_is_found_with_few_sends_per_window(broker: ServedBroker):
    """Most of the sends that were remembered since the last lookup have expired."""
    for number in range(50):
        first = send(broker, properties=keyed(f"K{number}"))
        broker.advance(WINDOW_MS / 1000 / 4)
    assert place(send(broker, properties=keyed("K49"))) == place(first)
    assert stored(broker) == 50


def test_beyond_the_limit_sends_are_stored_and_counted(make_broker: MakeBroker):
    broker = remembering(make_broker(), max_keys=2)
    told = [send(broker, properties=keyed(key)).ext["remembered"] for key in ("A", "B", "C")]
    assert told == ["true", "true", "false"]
    assert broker.counters.idempotent_overflow == 1
    assert len(broker.memory.machine.state.table(REMEMBERED)) == 2
    known, forgotten = (send(broker, properties=keyed(key)).ext for key in ("A", "C"))
    assert (known["remembered"], known["repeated"]) == ("true", "true")
    assert (forgotten["remembered"], forgotten.get("repeated")) == ("false", None)
    assert stored(broker) == 4


def test_each_send_of_a_turn_is_answered_with_its_own_remembered_flag(make_broker: MakeBroker):
    broker = remembering(make_broker(), max_keys=2)
    client = broker.client()
    sent = [start(client, b"x", keyed(key)) for key in ("A1", "B1", "C1")]
    broker.advance(1.0)
    assert [client.answered(opaque).ext["remembered"] for opaque in sent] == ["true", "true", "false"]


def test_only_sends_with_opt_in_are_answered_with_the_remembered_flag(broker: ServedBroker):
    general = broker.client().call(10, long_form(send_ext("T1", 0, ONE, idempotent="true")), b"x")
    answers = [
        *(general, send(broker, properties=keyed("K2"), idempotent="false")),
        *(send(broker, properties=""), send_batch(broker, batch("A", "B"))),
    ]
    remembering(broker, window_ms=0)
    answers.append(send(broker, properties=keyed("K3")))
    assert [answer.ext.get("remembered") for answer in answers] == ["true", None, "false", "true", "false"]


def test_a_topic_that_was_made_anew_remembers_nothing_of_earlier_sends_and_takes_sends_in_flight(broker: ServedBroker):
    send(broker)
    client = broker.client()
    late = [start(client, b"late", keyed(key)) for key in ("K1", "K2")]
    broker.memory.delete_topic("T1")
    broker.memory.create_topic("T1")
    broker.settle()
    assert [place(client.answered(opaque))[2] for opaque in late] == ["0", "1"]
    assert place(send(broker))[2] == "2"
    assert stored(broker) == 3


def test_a_repetition_of_a_trimmed_message_or_once_its_window_has_passed_in_the_log_is_stored_again(
    broker: ServedBroker,
):
    first = send(broker)
    broker.advance(WINDOW_MS / 2000)
    send(broker, properties=keyed("K2"))
    assert place(send(broker)) == place(first)
    broker.advance(WINDOW_MS * 1.1 / 1000)
    send(broker, properties=keyed("K3"))
    second = send(broker)
    assert place(second) != place(first)
    assert len(broker.memory.machine.state.table(REMEMBERED)) == 2
    broker.memory.node.trim(broker.memory.node.snapshot())
    assert place(send(broker)) != place(second)


def test_a_candidate_that_is_not_in_memory_is_read_from_the_disk(broker: ServedBroker):
    first = send(broker)
    broker.memory.node.cold = True
    assert place(read_from_disk(broker, b"hello")) == place(first)
    assert read_from_disk(broker, b"other").code == 0
    assert stored(broker) == 2


async def test_a_candidate_read_for_a_shorter_send_is_read_again_for_a_longer_send(broker: ServedBroker):
    long = b"hello" * 100
    first = send(broker, long)
    broker.memory.node.cold = True
    client = broker.client()
    start(client, b"hello")
    broker.settle()
    again = start(client, long)
    await asyncio.sleep(0)  # the shorter send comes again, behind the longer send
    assert broker.service.parts[SendRequests]._idempotent._fetched_sends
    await broker.memory.env.finish(asyncio.sleep(0.01))
    assert place(client.answered(again)) == place(first)
    assert stored(broker) == 2


def test_candidates_are_compared_when_no_record_is_known_to_be_in_memory(broker, monkeypatch):
    """On file systems that cannot tell, everything that was read once is read from the disk again."""
    first = send(broker)
    for body in (b"other", b"another"):
        send(broker, body)
    broker.memory.node.cold = True
    read, reads = broker.memory.node.read, list[int]()

    async def counted(position: int, size: int) -> bytes:
        reads.append(position)
        assert len(reads) <= 3, "each of the three candidates is read once"
        return await read(position, size)

    monkeypatch.setattr(broker.memory.node, "read", counted)
    assert place(read_from_disk(broker, b"hello")) == place(first)


def test_an_unreadable_candidate_fails_its_send_and_no_other(client: FakeClient, monkeypatch: pytest.MonkeyPatch):
    def corrupt(position: int, size: int) -> bytes:
        raise CorruptionError(f"{size} bytes at {position} are known to be corrupt")

    first = send(client.broker)
    monkeypatch.setattr(client.broker.memory.node, "read_nowait", corrupt)
    repeated = start(client, b"hello")
    other = start(client, b"hello", keyed("K2"))
    client.broker.settle()
    assert client.answered(repeated).code != 0
    assert client.answered(other).code == 0
    assert stored(client.broker) == 2
    monkeypatch.undo()
    assert place(send(client.broker)) == place(first)


def test_idempotent_and_ordinary_sends_keep_their_order_in_a_queue(client: FakeClient):
    opaques = [
        client.send(310, send_ext("T1", properties=keyed(n), idempotent=str(n % 3 == 0).lower()), b"x")
        for n in range(12)
    ]
    client.broker.settle()
    assert [client.answered(opaque).ext["queueOffset"] for opaque in opaques] == [str(n) for n in range(12)]


def test_no_send_is_remembered_before_every_member_understands_the_command(make_broker: MakeBroker):
    broker = make_broker()
    broker.memory.machine.state.members.kinds.clear()
    broker.memory.machine.events.add(GroupSettings(broker.memory.machine, broker.memory.env, broker.config))
    broker.settle()
    for _ in range(2):
        send(broker)
    assert stored(broker) == 2


def test_a_new_leader_indexes_remembered_sends_without_delaying_ordinary_sends(broker, monkeypatch):
    for key in ("K2", "K3"):
        send(broker, properties=keyed(key))
    first = send(broker)
    monkeypatch.setattr(idempotent, "ROWS_PER_SLICE", 1)
    successor = make_served_broker(broker.config, broker.memory.restart())
    client = successor.client()
    ordinary = client.send(310, send_ext("T1", properties=ONE), b"hello")
    repeated = start(client, b"hello")
    successor.settle()
    assert client.answered(ordinary).code == 0
    assert not client.has_answer(repeated)
    successor.advance(0.1)
    assert place(client.answered(repeated)) == place(first)
    assert stored(successor) == 4
