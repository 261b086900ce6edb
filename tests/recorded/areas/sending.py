"""Sends of one message or several, in each form: accepted, refused, and with unknown outcome."""

from dledger.errors import BusyError, LogFullError, TooLargeError
from dledger_remoting.batch import BatchMessage, encode_batch
from tests.recorded.conversation import Broker, Record

TWO_KEYS = encode_batch(
    [BatchMessage(0, b"first", b"UNIQ_KEY\x01B1\x02"), BatchMessage(7, b"", b"UNIQ_KEY\x01B2\x02TAGS\x01a\x02")]
)
NO_KEYS = encode_batch([BatchMessage(0, b"first", b""), BatchMessage(0, b"second", b"color\x01red")])
KEYED = "UNIQ_KEY\x01K1\x02TAGS\x01a\x02KEYS\x01one two\x02"


def send_ext(topic: str, queue_id: int = 0, properties: str = KEYED, **letters: str) -> dict[str, str]:
    """Return the fields of 310, by their letters."""
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000123"}
    return {**fields, "h": "0", "i": properties, **letters}


def long_ext(topic: str, queue_id: int = 0, properties: str = KEYED, **fields: str) -> dict[str, str]:
    """Return the fields of 10, by their names."""
    names = {"producerGroup": "PG", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    numbers = {"queueId": str(queue_id), "sysFlag": "0", "bornTimestamp": "1700000000123", "flag": "0"}
    return {**names, **numbers, "properties": properties, **fields}


async def talk(record: Record) -> None:
    await forms(record.broker("sends in each form"))
    await refused(record.broker("sends that are refused", max_message_bytes=100))
    await new_topics(record.broker("sends to topics that are not there"))
    await retries(record.broker("sends to retry topics"))
    closed = record.broker("a broker that makes no topics and groups", auto_create_topic=False, auto_create_group=False)
    await closed.ask("no such topic", 310, send_ext("T1"), b"hello")
    await closed.ask("no such group", 310, send_ext("%RETRY%CG"), b"hello")
    await repeated(record.broker("sends that are repeated"))
    await unknown(record.broker("sends whose outcome is unknown"))
    await elsewhere(record.broker("sends to a node that does not lead"))


async def forms(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.ask("letters", 310, send_ext("T1"), b"hello")
    await broker.ask("letters, in binary", 310, send_ext("T1"), b"hello", serialize_type=1)
    await broker.ask("names", 10, long_ext("T1"), b"hello")
    await broker.ask("names, in binary", 10, long_ext("T1"), b"hello", serialize_type=1)
    await broker.ask(
        "the most that may be said", 310, send_ext("T1", 3, f="769", h="5", j="2", k="true", l="4", n="broker-a"), b"x"
    )
    await broker.ask("no properties, no body", 310, send_ext("T1", 1, properties=""))
    await broker.ask("properties without an end", 310, send_ext("T1", 1, properties="color\x01red"), b"hello")
    await broker.ask("several messages", 320, send_ext("T1", m="true"), TWO_KEYS)
    await broker.ask("several messages by 310", 310, send_ext("T1", m="true"), TWO_KEYS)
    await broker.ask("several messages by 10", 10, long_ext("T1", batch="true"), TWO_KEYS)
    await broker.ask("several messages without keys", 320, send_ext("T1", m="true"), NO_KEYS)
    await broker.send("one that is not answered", 310, send_ext("T1", 2), b"hello", oneway=True)
    await broker.send("names that are not answered", 10, long_ext("T1", 2), b"hello", oneway=True)
    await broker.send("several that are not answered", 320, send_ext("T1", 2, m="true"), TWO_KEYS, oneway=True)
    await broker.ask("all of them are stored", 30, {"topic": "T1", "queueId": "2"})
    broker.create_topic("single", 1)
    await broker.ask("any queue", 310, send_ext("single", -1), b"hello")


async def refused(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.ask("a queue that is not there", 310, send_ext("T1", 4), b"hello")
    await broker.ask("a queue that is no number", 310, send_ext("T1", e="one"), b"hello")
    await broker.ask("a queue beyond all numbers", 310, send_ext("T1", e="4294967296"), b"hello")
    await broker.ask("no topic at all", 310, {"a": "PG"}, b"hello")
    await broker.ask("no topic at all", 10, {"producerGroup": "PG"}, b"hello")
    await broker.ask("nothing at all", 320)
    await broker.ask("a body that is too long", 310, send_ext("T1"), bytes(101))
    await broker.ask("as long as it may be", 310, send_ext("T1"), bytes(100))
    await broker.ask("a transaction", 310, send_ext("T1", f="4"), b"hello")
    await broker.ask("a delay", 310, send_ext("T1", properties="DELAY\x013\x02"), b"hello")
    await broker.ask("properties that are too long", 310, send_ext("T1", properties="a\x01" + 32_700 * "b"), b"hello")
    await broker.ask("a topic that only the broker writes", 310, send_ext("RMQ_SYS_TRANS_HALF_TOPIC"), b"hello")
    await broker.ask("a name that is none", 310, send_ext("T 1"), b"hello")
    await broker.ask("an empty name", 310, send_ext(""), b"hello")
    await broker.ask("no messages", 320, send_ext("T1", m="true"))
    await broker.ask("messages that are none", 320, send_ext("T1", m="true"), b"\x00\x00\x00\x09hello")
    await broker.send("one that is not answered", 310, send_ext("T1", 4), b"hello", oneway=True)
    for error in (
        BusyError("64 MiB wait for a majority"),
        LogFullError("the disk is full"),
        TooLargeError("the unit has 9 MiB, the limit is 8 MiB"),
    ):
        broker.memory.node.stage_error = error
        await broker.ask(f"the log refuses: {error}", 310, send_ext("T1"), b"hello")
    broker.memory.node.stage_error = None
    header = {"topic": "T1", "defaultTopic": "", "readQueueNums": "4", "writeQueueNums": "4", "perm": "4"}
    await broker.ask("T1 is made to be read only", 17, {**header, "topicFilterType": "SINGLE_TAG"})
    await broker.ask("a topic that is not written", 310, send_ext("T1"), b"hello")


async def new_topics(broker: Broker) -> None:
    await broker.ask("as others", 310, send_ext("T1"), b"hello")
    await broker.ask("more queues than there may be", 310, send_ext("T2", 5, d="100"), b"hello")
    await broker.ask("no queues", 10, long_ext("T3", defaultTopicQueueNums="0"), b"hello")
    await broker.ask("as a topic that is no example", 310, send_ext("T4", c="T1"), b"hello")
    await broker.ask("as a topic that is not there", 320, send_ext("T4", c="T9", m="true"), TWO_KEYS)
    for name in ("T1", "T2", "T3"):
        await broker.ask("what was made", 351, {"topic": name})


async def retries(broker: Broker) -> None:
    await broker.ask("a group that is not there", 310, send_ext("%RETRY%CG", j="1"), b"hello")
    await broker.ask("as often as may be", 310, send_ext("%RETRY%CG", j="16"), b"hello")
    await broker.ask("too often", 310, send_ext("%RETRY%CG", j="17"), b"hello")
    await broker.ask(
        "too often for its client", 10, long_ext("%RETRY%CG", reconsumeTimes="2", maxReconsumeTimes="1"), b"hello"
    )
    await broker.ask("a delay", 310, send_ext("%RETRY%CG", properties="DELAY\x013\x02", j="1"), b"hello")
    await broker.ask("several", 320, send_ext("%RETRY%CG", m="true"), TWO_KEYS)
    for name in ("%RETRY%CG", "%DLQ%CG"):
        await broker.ask("what was made", 351, {"topic": name})


async def repeated(broker: Broker) -> None:
    broker.create_topic("T1")
    for _ in range(2):
        await broker.ask("opted in", 310, send_ext("T1", idempotent="true"), b"hello")
        await broker.ask(
            "opted in, in binary",
            10,
            long_ext("T1", properties="UNIQ_KEY\x01K2\x02", idempotent="true"),
            b"hello",
            serialize_type=1,
        )
        await broker.ask("several", 320, send_ext("T1", m="true", idempotent="true"), TWO_KEYS)
    header = {"topic": "T2", "defaultTopic": "", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    await broker.ask("T2 opts in", 17, {**header, "topicFilterType": "SINGLE_TAG", "attributes": "+idempotent=true"})
    for _ in range(2):
        await broker.ask("its topic has opted in", 310, send_ext("T2"), b"hello")
    await broker.ask("other than before", 310, send_ext("T1", idempotent="true"), b"other")


async def unknown(broker: Broker) -> None:
    broker.create_topic("T1")
    broker.stop_committing()
    await broker.ask("no majority in time", 310, send_ext("T1"), b"hello")
    await broker.ask("several, no majority in time", 320, send_ext("T1", m="true"), TWO_KEYS)
    waiting = await broker.send("one that is on its way", 310, send_ext("T1"), b"hello")
    await broker.step_down()
    await broker.answer(waiting)


async def elsewhere(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.step_down()
    await broker.ask("nobody leads", 310, send_ext("T1"), b"hello")
    await broker.ask("nobody leads, and the client would rather know", 310, send_ext("T1", noForward="true"), b"hello")
    await broker.follow()
    for code, ext in ((310, send_ext("T1")), (10, long_ext("T1")), (320, send_ext("T1", m="true"))):
        await broker.ask("another one leads", code, {**ext, "noForward": "true"}, TWO_KEYS)
    await broker.ask("another one leads, which cannot be reached", 10, long_ext("T1"), b"hello", serialize_type=1)
    waiting = await broker.send("one that waits for a leader", 310, send_ext("T1"), b"hello")
    await broker.lead()
    await broker.answer(waiting)
