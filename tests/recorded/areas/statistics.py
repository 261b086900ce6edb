"""Statistics of topics and producers, and requests for an immediate cleanup."""

import json

from tests.recorded.areas.membership import heartbeat
from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

TOPIC = {"topic": "T1"}
GROUP = {"group": "CG"}
PRODUCERS = {"producerGroup": "PG"}


async def talk(record: Record) -> None:
    await told(record.broker("statistics"))
    await counted(record.broker("what is counted"))
    await looked_at(record.broker("units of queues"))
    await groups(record.broker("groups in lists"))
    await elsewhere(record.broker("statistics at a node that does not lead"))


async def told(broker: Broker) -> None:
    for code in (202, 300, 303):
        await broker.ask("a topic that is not there", code, TOPIC | GROUP)
    await broker.ask("a group that is not there", 343, GROUP)
    await broker.ask("a group that is not there", 204, PRODUCERS)
    for code in (202, 204, 300, 303, 343):
        await broker.ask("nobody says of what", code)
    broker.create_topic("T1", 2)
    for code in (202, 300, 303):
        await broker.ask("a topic in which nothing is stored", code, TOPIC | GROUP)
    await broker.ask("nobody is connected", 328)
    await broker.ask("a client that consumes and produces", 34, body=heartbeat("c1"))
    for _ in range(2):
        await broker.ask("a message", 310, send_ext("T1"), b"hello")
    offset = {"consumerGroup": "OTHER", "topic": "T1", "queueId": "0", "commitOffset": "1"}
    await broker.ask("a group", 200, body=b'{"groupName":"OTHER"}')
    await broker.ask("it has consumed something", 15, offset)
    for code in (202, 300, 303):
        await broker.ask("a topic", code, TOPIC | {"group": "OTHER"})
        await broker.ask("a topic, in binary", code, TOPIC | {"group": "OTHER"}, serialize_type=1)
    await broker.ask("what is due or not committed is not shown", 303, {"topic": "SCHEDULE_TOPIC_XXXX", **GROUP})
    await broker.ask("its topics", 343, {"group": "OTHER"})
    await broker.ask("who produces", 204, PRODUCERS)
    await broker.ask("who produces in all groups", 328)
    await broker.ask("topics of the system", 305)
    for code in (306, 316, 329):
        await broker.ask("cleaning", code)


async def looked_at(broker: Broker) -> None:
    asked = {**TOPIC, "queueId": "0", "index": "0", "count": "2"}
    subscribed = {**TOPIC, "group": "CG"}
    await broker.ask("a queue that is not there", 321, asked)
    await broker.ask("nobody says which", 321)
    broker.create_topic("T1", 2)
    for _ in range(3):
        await broker.ask("a message", 310, send_ext("T1"), b"hello")
    await broker.ask("its first units", 321, asked)
    await broker.ask("the last one, in binary", 321, {**asked, "index": "2"}, serialize_type=1)
    await broker.ask("units for a group that is not there", 321, {**asked, "consumerGroup": "CG"})
    await broker.ask("what nobody subscribes to", 345, subscribed)
    await broker.ask("a client that consumes and produces", 34, body=heartbeat("c1"))
    await broker.ask("units for a group", 321, {**asked, "consumerGroup": "CG"})
    await broker.ask("what a group subscribes to", 345, subscribed)
    await broker.ask("what a group subscribes to, in binary", 345, subscribed, serialize_type=1)
    await broker.ask("nobody says of what", 345)


async def counted(broker: Broker) -> None:
    broker.create_topic("T1", 1)
    stored = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T1"}
    await broker.ask("nothing is counted yet", 315, stored)
    await broker.ask("nobody says what", 315)
    await broker.ask("no group has consumed anything", 317, {"isOrder": "false"})
    await broker.ask("a group", 200, body=b'{"groupName":"CG"}')
    await broker.ask("a message", 310, send_ext("T1"), b"hello")
    await broker.ask("a commit", 15, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "1"})
    await broker.ask("all groups", 317, {"isOrder": "false"})
    await broker.ask("all groups, of ordered topics", 317, {"isOrder": "true"})


async def groups(broker: Broker) -> None:
    def of(*names: str) -> bytes:
        return json.dumps({"groupConfigList": [{"groupName": name} for name in names]}).encode()

    await broker.ask("no body", 225)
    await broker.ask("none", 225, body=of())
    await broker.ask("one that is refused", 225, body=of("CG", "C G"))
    await broker.ask("nothing of it is there", 352, GROUP)
    await broker.ask("two", 225, body=of("CG", "OTHER", "CG"))
    await broker.ask("one of them", 352, GROUP)


async def elsewhere(broker: Broker) -> None:
    broker.create_topic("T1", 1)
    await broker.follow()
    none = {"noForward": "true"}
    for code in (202, 225, 300, 303, 305, 317, 343):
        await broker.ask("another one leads", code, {**TOPIC, **GROUP, **none})
    await broker.ask("another one leads", 204, {**PRODUCERS, **none})
    for code in (306, 315, 316, 328, 329):
        await broker.ask("any node", code, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T1", **none})
