"""Topics: create, change, delete, show."""

import msgspec

from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record


def topic_ext(name: str, **fields: str) -> dict[str, str]:
    """Return the fields of 17."""
    queues = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "3", "perm": "6"}
    return {**queues, "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **fields}


def list_of(*configs: dict[str, object]) -> bytes:
    """Return the body of 18."""
    return msgspec.json.encode({"topicConfigList": configs})


async def talk(record: Record) -> None:
    await changed(record.broker("topics that are made and changed"))
    await refused(record.broker("topics that are refused"))
    await elsewhere(record.broker("topics at a node that does not lead"))


async def changed(broker: Broker) -> None:
    await broker.ask("what there is from the start", 21)
    await broker.ask("one is made", 17, topic_ext("T1"))
    await broker.ask("it", 351, {"topic": "T1"})
    await broker.ask("it, in binary", 351, {"topic": "T1"}, serialize_type=1)
    await broker.ask(
        "it is changed", 17, topic_ext("T1", readQueueNums="5", attributes="+a=1,+message.type=FIFO", order="true")
    )
    await broker.ask("an attribute goes, another one comes", 17, topic_ext("T1", attributes="-a,+b="), serialize_type=1)
    await broker.ask("it", 351, {"topic": "T1"})
    await broker.ask("two are made", 18, body=list_of({"topicName": "T2"}, {"topicName": "T3", "readQueueNums": 1}))
    await broker.ask("one is named twice", 18, body=list_of({"topicName": "T2"}, {"topicName": "T2", "perm": 4}))
    await broker.send("one is made without an answer", 17, topic_ext("T4"), oneway=True)
    await broker.send(
        "two are made without an answer", 18, body=list_of({"topicName": "T5"}, {"topicName": "T6"}), oneway=True
    )
    await broker.ask("a message", 310, send_ext("T1"), b"hello")
    await broker.ask("all", 21)
    await broker.ask("one is deleted", 215, {"topic": "T1"})
    await broker.ask("it again", 215, {"topic": "T1"})
    await broker.send("one is deleted without an answer", 215, {"topic": "T2"}, oneway=True)
    await broker.ask("what is no longer there", 351, {"topic": "T1"})
    await broker.ask("all, in binary", 21, serialize_type=1)
    await broker.ask("it is made anew", 17, topic_ext("T1"))
    await broker.ask("its first message", 310, send_ext("T1"), b"hello")


async def refused(broker: Broker) -> None:
    await broker.ask("a name that is none", 17, topic_ext("T 1"))
    await broker.ask("a name that is too long", 17, topic_ext(128 * "t"))
    await broker.ask("a name of the system's", 17, topic_ext("TBW102"))
    await broker.ask("no queues", 17, topic_ext("T1", writeQueueNums="0"))
    await broker.ask("too many queues", 17, topic_ext("T1", readQueueNums="65537"))
    await broker.ask("queues that are no number", 17, topic_ext("T1", readQueueNums="many"))
    await broker.ask("rights that are none", 17, topic_ext("T1", perm="8"))
    await broker.ask("a filter that is none", 17, topic_ext("T1", topicFilterType="SQL92"))
    await broker.ask("attributes that are none", 17, topic_ext("T1", attributes="a=1"))
    await broker.ask("too many attributes", 17, topic_ext("T1", attributes="+a=" + 4_096 * "b"))
    await broker.ask("nothing at all", 17)
    await broker.ask("no topics", 18, body=list_of())
    await broker.ask("one of two is refused", 18, body=list_of({"topicName": "T1"}, {"topicName": "T 1"}))
    await broker.ask("a topic of the system is deleted", 215, {"topic": "TBW102"})
    await broker.ask("no name", 215, {"topic": ""})
    await broker.ask("no name at all", 215)
    await broker.ask("what is not there", 351, {"topic": "T1"})
    await broker.ask("no name at all", 351)
    await broker.send("what is not there, without an answer", 351, {"topic": "T1"}, oneway=True)
    broker.stop_committing()
    first = await broker.send("one that is on its way", 17, topic_ext("T1"))
    second = await broker.send("two that are on their way", 18, body=list_of({"topicName": "T2"}, {"topicName": "T3"}))
    third = await broker.send("a deletion that is on its way", 215, {"topic": "T4"})
    await broker.step_down()
    for opaque in (first, second, third):
        await broker.answer(opaque)


async def elsewhere(broker: Broker) -> None:
    await broker.ask("one is made", 17, topic_ext("T1"))
    await broker.follow()
    none = {"noForward": "true"}
    await broker.ask("one is made", 17, topic_ext("T2", **none))
    await broker.ask("two are made", 18, none, list_of({"topicName": "T2"}, {"topicName": "T3"}))
    await broker.ask("one is deleted", 215, {"topic": "T1", **none})
    await broker.ask("one is shown", 351, {"topic": "T1", **none})
    await broker.ask("all", 21, none)
    await broker.ask("all, and the leader cannot be reached", 21)
    await broker.ask("one is made, and the leader cannot be reached", 17, topic_ext("T2"), serialize_type=1)
