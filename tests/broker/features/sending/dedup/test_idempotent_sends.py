"""Opted-in sends: a repetition gets the first answer and stores nothing, whatever happened; all else is stored."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from served_broker import MakeBroker, ServedBroker, make_served_broker, send_ext

from dledger.errors import CorruptionError
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.sending.dedup import idempotent
from dledger_broker.features.sending.dedup.remembered import REMEMBERED
from dledger_broker.features.sending.send import SendRequests
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command

ONE = "UNIQ_KEY\x01K1\x02TAGS\x01a\x02color\x01red\x02"
LONG_NAMES = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag"),
    *("properties", "batch"),
)
WINDOW_MS = 10_000


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """A broker that leads, has topic T1, and remembers sends for `WINDOW_MS`."""
    return remembering(make_broker())


def remembering(broker: ServedBroker, max_keys: int = 1000) -> ServedBroker:
    config = replace(broker.config, idempotent_window_ms=WINDOW_MS, max_idempotent_keys=max_keys)
    GroupSettings(broker.memory.machine, broker.memory.env, config)
    broker.settle()
    assert broker.memory.machine.state.table(REMEMBERED).window_ms == WINDOW_MS
    return broker


def send(
    broker: ServedBroker, body: bytes = b"hello", properties: str = ONE, topic: str = "T1", **fields: str
) -> RemotingCommand:
    return broker.client().send_message(topic, body, properties=properties, **{"idempotent": "true", **fields})


def place(answer: RemotingCommand) -> tuple[str, str, str]:
    assert answer.code == 0, answer.remark
    return answer.ext["msgId"], answer.ext["queueId"], answer.ext["queueOffset"]


def stored(broker: ServedBroker, topic: str = "T1") -> int:
    return sum(queue.next_offset for queue in broker.memory.machine.state.topics[topic].queues.values())


def batch(*keys: str) -> bytes:
    return encode_batch([BatchMessage(0, b"body", f"UNIQ_KEY\x01{key}\x02".encode()) for key in keys])


def send_batch(broker: ServedBroker, body: bytes, **fields: str) -> RemotingCommand:
    return broker.client().call(320, send_ext("T1", **{"m": "true", "idempotent": "true", **fields}), body)


def test_a_repetition_gets_the_first_answer_and_stores_nothing(broker: ServedBroker):
    send(broker, properties="UNIQ_KEY\x01K0\x02")
    first = send(broker)
    again = send(broker, e="2", g="1700000009999")
    assert place(again) == place(first)
    assert again.ext["transactionId"] == first.ext["transactionId"] == "K1"
    assert stored(broker) == 2
    assert broker.counters.idempotent_repeats == 1


def test_a_repetition_is_known_whatever_it_says_of_what_the_broker_owns(broker: ServedBroker):
    first = send(broker, properties=f"{ONE}REAL_QID\x019\x02")
    assert place(send(broker)) == place(first)
    assert place(send(broker, properties=f"POP_CK\x01x\x02{ONE}")) == place(first)
    assert stored(broker) == 1


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
def test_anything_different_is_stored(make_broker: MakeBroker, other: dict[str, str]):
    broker = remembering(make_broker(topics=("T1", "T2")))
    first = send(broker)
    second = send(broker, **other)
    assert place(second)[0] != place(first)[0]
    assert stored(broker) + stored(broker, "T2") == 2
    assert place(send(broker, **other)) == place(second)
    assert place(send(broker)) == place(first)


def test_what_is_not_opted_in_is_stored_each_time(broker: ServedBroker):
    for fields in ({"idempotent": "false"}, {"properties": "color\x01red\x02"}):
        before = stored(broker)
        send(broker, **fields)
        send(broker, **fields)
        assert stored(broker) == before + 2


def test_topics_that_the_broker_writes_to_itself_are_left_out(broker: ServedBroker):
    for topic in ("%RETRY%CG", "RMQ_SYS_TRACE_TOPIC"):
        if not topic.startswith("%"):
            broker.memory.create_topic(topic)
        sends = [send(broker, topic=topic, j="1") for _ in range(2)]
        assert [answer.code for answer in sends] == [0, 0]
        assert stored(broker, topic) == 2


def test_a_topic_can_opt_in_for_clients_that_cannot(broker: ServedBroker):
    header = {"topic": "T3", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    fields = {"topicFilterType": "SINGLE_TAG", "attributes": "+idempotent=true"}
    assert broker.client().call(17, {**header, **fields}).code == 0
    first = send(broker, topic="T3", idempotent="")
    assert place(send(broker, topic="T3", idempotent="")) == place(first)
    assert stored(broker, "T3") == 1


def test_a_repetition_waits_for_the_outcome_of_what_is_in_flight(broker: ServedBroker):
    clients = [broker.client() for _ in range(3)]
    opaques = [client.send(310, send_ext("T1", properties=ONE, idempotent="true"), b"x") for client in clients]
    broker.settle()
    assert [client.has_answer(opaque) for client, opaque in zip(clients, opaques, strict=True)] == [True, False, False]
    broker.advance(0.02)
    answers = [client.answered(opaque) for client, opaque in zip(clients, opaques, strict=True)]
    assert len({place(answer) for answer in answers}) == 1
    assert stored(broker) == 1
    assert broker.counters.idempotent_waits == 2


def test_other_sends_do_not_wait_for_what_is_in_flight(broker: ServedBroker):
    node = broker.memory.node
    node.commit = lambda: None  # not yet
    broker.client().send(310, send_ext("T1", properties=ONE, idempotent="true"), b"x")
    broker.client().send(310, send_ext("T1", properties="UNIQ_KEY\x01K2\x02"), b"not opted in")
    broker.settle()
    broker.client().send(310, send_ext("T1", properties=ONE, idempotent="true"), b"x")
    other = broker.client()
    opaque = other.send(310, send_ext("T1", properties="UNIQ_KEY\x01K3\x02"), b"not opted in")
    broker.settle()
    del node.commit
    node.commit()
    assert place(other.answered(opaque))[2] == "2"
    assert broker.counters.idempotent_waits == 1


def test_one_message_to_several_topics_and_groups_does_not_wait_for_itself(make_broker: MakeBroker):
    broker = remembering(make_broker(topics=("T1", "T2")))
    for topic in ("T1", "T2"):
        send(broker, topic=topic, properties="UNIQ_KEY\x01first\x02")  # later ones take the short way
    node = broker.memory.node
    node.commit = lambda: None  # not yet
    read = b""
    for opaque, (topic, group) in enumerate((("T1", "PG"), ("T2", "PG"), ("T1", "other"))):
        ext = send_ext(topic, properties=ONE, idempotent="true", a=group)
        read += encode_command(RemotingCommand(310, opaque=opaque, ext=ext, body=b"x"))
    broker.client().feed(read)
    broker.settle()
    del node.commit
    node.commit()
    assert broker.counters.idempotent_waits == 0
    assert (stored(broker), stored(broker, "T2")) == (3, 2)


def test_a_repetition_of_what_never_gets_its_outcome_says_that_it_is_not_known(broker: ServedBroker):
    client, other = broker.client(), broker.client()
    machine, node = broker.memory.machine, broker.memory.node
    node.commit = lambda: None  # a majority is gone
    first = client.send(310, send_ext("T1", properties=ONE, idempotent="true"), b"x")
    broker.settle()
    second = other.send(310, send_ext("T1", properties=ONE, idempotent="true"), b"x")
    broker.advance(broker.config.quorum_timeout_ms / 1000 + 0.2)
    for answer in (client.answered(first), other.answered(second)):
        assert (answer.code, answer.ext.get("outcome")) == (ResponseCode.SYSTEM_ERROR, "unknown")
    del node.commit
    node.commit()
    third = send(broker, b"x")
    assert machine.state.table(REMEMBERED).find(0) == []
    assert (place(third)[2], stored(broker)) == ("0", 1)


def test_a_repetition_after_a_failover_finds_what_was_stored_and_stores_what_was_lost(broker: ServedBroker):
    first = send(broker)
    client = broker.client()
    lost = client.send(310, send_ext("T1", properties="UNIQ_KEY\x01K2\x02", idempotent="true"), b"lost")
    broker.service.parts[SendRequests].flush()
    broker.memory.node.step_down()
    assert client.answered(lost).ext["outcome"] == "unknown"
    broker.memory.node.lead()
    broker.settle()
    assert place(send(broker)) == place(first)
    again = send(broker, b"lost", "UNIQ_KEY\x01K2\x02")
    assert place(again)[2] == "1"
    assert place(send(broker, b"lost", "UNIQ_KEY\x01K2\x02")) == place(again)
    assert stored(broker) == 2


def test_a_send_that_a_full_disk_refused_is_stored_at_once_when_it_is_tried_again(broker: ServedBroker):
    """A repetition of what is in flight waits for its outcome; what is refused has it."""
    send(broker)
    client = broker.client()
    refused = client.send(310, send_ext("T1", properties="UNIQ_KEY\x01K2\x02", idempotent="true"), b"again")
    broker.service.parts[SendRequests].flush()
    broker.memory.node.drop_staged()
    answer = client.answered(refused)
    assert (answer.code, answer.ext.get("outcome")) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    assert (answer.remark or "").startswith("nothing was stored: ")
    again = send(broker, b"again", "UNIQ_KEY\x01K2\x02")
    assert (place(again)[2], stored(broker)) == ("1", 2)


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_another_node_knows_what_was_stored(broker: ServedBroker, from_snapshot: bool):
    first = send(broker)
    both = send_batch(broker, batch("K5", "K6"))
    if from_snapshot:
        broker.memory.node.snapshot()
    third = send(broker, b"later", "UNIQ_KEY\x01K3\x02")
    again = make_served_broker(broker.config, broker.memory.restart())
    assert again.memory.machine.digest() == broker.memory.machine.digest()
    assert place(send(again)) == place(first)
    assert place(send(again, b"later", "UNIQ_KEY\x01K3\x02")) == place(third)
    assert place(send_batch(again, batch("K5", "K6"))) == place(both)
    assert stored(again) == 4


def test_a_batch_is_one_identity(broker: ServedBroker):
    first = send_batch(broker, batch("A", "B", "C"))
    assert len(place(first)[0].split(",")) == 3
    assert place(send_batch(broker, batch("A", "B", "C"), e="3")) == place(first)
    assert stored(broker) == 3
    for other in (("A", "B"), ("A", "B", "D"), ("C", "B", "A")):
        before = stored(broker)
        assert send_batch(broker, batch(*other)).code == 0
        assert stored(broker) == before + len(other)
    alone = send(broker, b"body", "UNIQ_KEY\x01A\x02")
    assert stored(broker) == 12
    assert place(send(broker, b"body", "UNIQ_KEY\x01A\x02")) == place(alone)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_repetition_in_another_form_is_one(broker: ServedBroker, is_batch: bool):
    """The first send takes the short way, the second one the general way; and the other way round."""
    body = batch("A", "B") if is_batch else b"hello"
    ext = send_ext("T1", 0, "" if is_batch else ONE, m=str(is_batch).lower(), idempotent="true")
    names = dict(zip("abcdefghim", LONG_NAMES, strict=True))
    long_ext = {names.get(letter, letter): value for letter, value in ext.items()}
    first = broker.client().call(310, ext, body)
    assert place(broker.client().call(10, long_ext, body)) == place(first)
    other = broker.client().call(10, {**long_ext, "producerGroup": "other"}, body)
    assert place(broker.client().call(310, {**ext, "a": "other"}, body)) == place(other) != place(first)


def test_a_send_is_forgotten_once_the_window_has_passed_in_the_log(broker: ServedBroker):
    first = send(broker)
    broker.advance(WINDOW_MS / 2000)
    send(broker, properties="UNIQ_KEY\x01K2\x02")
    assert place(send(broker)) == place(first)
    broker.advance(WINDOW_MS * 1.1 / 1000)
    send(broker, properties="UNIQ_KEY\x01K3\x02")
    assert place(send(broker)) != place(first)
    assert len(broker.memory.machine.state.table(REMEMBERED)) == 2


def test_a_repetition_is_found_however_few_sends_a_window_holds(broker: ServedBroker):
    """Most of what was remembered since somebody last looked has expired."""
    for number in range(50):
        first = send(broker, properties=f"UNIQ_KEY\x01K{number}\x02")
        broker.advance(WINDOW_MS / 1000 / 4)
    assert place(send(broker, properties="UNIQ_KEY\x01K49\x02")) == place(first)
    assert stored(broker) == 50


def test_beyond_the_limit_sends_are_stored_and_counted(make_broker: MakeBroker):
    broker = remembering(make_broker(), max_keys=2)
    for key in ("A", "B", "C"):
        assert send(broker, properties=f"UNIQ_KEY\x01{key}\x02").code == 0
    assert broker.counters.idempotent_overflow == 1
    assert len(broker.memory.machine.state.table(REMEMBERED)) == 2
    send(broker, properties="UNIQ_KEY\x01A\x02")
    send(broker, properties="UNIQ_KEY\x01C\x02")
    assert stored(broker) == 4


def test_a_topic_that_was_made_anew_remembers_nothing(broker: ServedBroker):
    send(broker)
    broker.memory.delete_topic("T1")
    broker.memory.create_topic("T1")
    assert place(send(broker))[2] == "0"
    assert stored(broker) == 1


def test_what_is_no_longer_kept_is_stored_again(broker: ServedBroker):
    first = send(broker)
    broker.memory.node.trim(broker.memory.node.snapshot())
    assert place(send(broker)) != place(first)


def test_a_candidate_that_is_not_in_memory_is_read_from_the_disk(broker: ServedBroker):
    first = send(broker)
    broker.memory.node.cold = True
    again = broker.client().call_from_disk(310, send_ext("T1", properties=ONE, idempotent="true"), b"hello")
    assert place(again) == place(first)
    other = broker.client().call_from_disk(310, send_ext("T1", properties=ONE, idempotent="true"), b"other")
    assert other.code == 0
    assert stored(broker) == 2


def test_a_candidate_that_was_read_for_a_shorter_send_is_read_again_for_a_longer_one(broker: ServedBroker):
    long = b"hello" * 100
    first = send(broker, long)
    broker.memory.node.cold = True
    client = broker.client()

    async def scenario() -> None:
        client.send(310, send_ext("T1", properties=ONE, idempotent="true"), b"hello")
        broker.settle()
        again = client.send(310, send_ext("T1", properties=ONE, idempotent="true"), long)
        await asyncio.sleep(0)  # the shorter one comes again, behind it
        assert broker.service.parts[SendRequests]._idempotent._fetched
        await broker.memory.env.finish(asyncio.sleep(0.01))
        assert place(client.answered(again)) == place(first)

    asyncio.run(scenario())
    assert stored(broker) == 2


def test_candidates_are_compared_where_nothing_is_known_to_be_in_memory(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
):
    """As on file systems that cannot tell: whatever was read once is read from the disk again."""
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
    again = broker.client().call_from_disk(310, send_ext("T1", properties=ONE, idempotent="true"), b"hello")
    assert place(again) == place(first)


def test_a_candidate_that_cannot_be_read_fails_its_send_and_no_other(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
):
    def corrupt(position: int, size: int) -> bytes:
        raise CorruptionError(f"{size} bytes at {position} are known to be corrupt")

    first = send(broker)
    monkeypatch.setattr(broker.memory.node, "read_nowait", corrupt)
    client = broker.client()
    repeated = client.send(310, send_ext("T1", properties=ONE, idempotent="true"), b"hello")
    other = client.send(310, send_ext("T1", properties="UNIQ_KEY\x01K2\x02", idempotent="true"), b"hello")
    broker.settle()
    assert client.answered(repeated).code != 0
    assert client.answered(other).code == 0
    assert stored(broker) == 2
    monkeypatch.undo()
    assert place(send(broker)) == place(first)


def test_sends_of_both_kinds_keep_their_order_in_a_queue(broker: ServedBroker):
    client = broker.client()
    opaques = [
        client.send(310, send_ext("T1", properties=f"UNIQ_KEY\x01{n}\x02", idempotent=str(n % 3 == 0).lower()), b"x")
        for n in range(12)
    ]
    broker.settle()
    assert [client.answered(opaque).ext["queueOffset"] for opaque in opaques] == [str(n) for n in range(12)]


def test_nothing_is_remembered_before_every_member_understands_it(make_broker: MakeBroker):
    broker = make_broker()
    broker.memory.machine.state.members.kinds.clear()
    GroupSettings(broker.memory.machine, broker.memory.env, broker.config)
    broker.settle()
    send(broker)
    send(broker)
    assert stored(broker) == 2


def test_a_new_leader_first_indexes_what_is_remembered_and_holds_up_no_other_sends(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
):
    for key in ("K2", "K3"):
        send(broker, properties=f"UNIQ_KEY\x01{key}\x02")
    first = send(broker)
    monkeypatch.setattr(idempotent, "ROWS_PER_SLICE", 1)
    successor = make_served_broker(broker.config, broker.memory.restart())
    client = successor.client()
    ordinary = client.send(310, send_ext("T1", properties=ONE), b"hello")
    repeated = client.send(310, send_ext("T1", properties=ONE, idempotent="true"), b"hello")
    successor.settle()
    assert client.answered(ordinary).code == 0
    assert not client.has_answer(repeated)
    successor.advance(0.1)
    assert place(client.answered(repeated)) == place(first)
    assert stored(successor) == 4


def test_sends_to_a_topic_that_is_deleted_before_they_are_staged_go_to_the_next_one(broker: ServedBroker):
    send(broker)
    client = broker.client()
    late = [
        client.send(310, send_ext("T1", properties=f"UNIQ_KEY\x01{key}\x02", idempotent="true"), b"late")
        for key in ("K1", "K2")
    ]
    broker.memory.delete_topic("T1")
    broker.memory.create_topic("T1")
    broker.settle()
    assert [place(client.answered(opaque))[2] for opaque in late] == ["0", "1"]
