"""Members of consumer groups: heartbeats, notifications, queries, and the progress of a group."""

import msgspec

from dledger_remoting.codes import LanguageCode
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_heartbeat
from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

GROUP = {"consumerGroup": "CG"}
NOTICES = {"dledgerNotify": "true"}


async def talk(record: Record) -> None:
    await come_and_go(record.broker("members that come and go"))
    await forms(record.broker("heartbeats of several kinds of clients"))
    await refused(record.broker("heartbeats that are refused"))
    await questions(record.broker("questions about groups"))
    closed = record.broker("a broker that makes no groups", auto_create_group=False)
    await closed.ask("a heartbeat", 34, body=heartbeat("c1"))
    await closed.ask("what it did not bring about", 352, {"group": "CG"})
    await elsewhere(record.broker("members at a node that does not lead"))


def heartbeat(client_id: str, tags: str = "*", group: str = "CG") -> bytes:
    """Return the heartbeat of a client that produces, and consumes for one group."""
    subscriptions = [SubscriptionData("T1", tags, tags_set=[tags], code_set=[98], sub_version=7)]
    consumers = [ConsumerData(group, subscription_data_set=subscriptions)]
    return encode_heartbeat(HeartbeatData(client_id, [ProducerData("PG")], consumers))


async def come_and_go(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.ask("the first one", 34, NOTICES, heartbeat("c1"), client="one", language=LanguageCode.CPP)
    await broker.ask("it again", 34, body=heartbeat("c1"), client="one", language=LanguageCode.CPP)
    await broker.ask("what it brought about", 352, {"group": "CG"})
    await broker.ask("the second one", 34, body=heartbeat("c2", "b"), client="two", serialize_type=1)
    await broker.ask("who is there", 38, GROUP)
    await broker.ask("the first one subscribes to something else", 34, body=heartbeat("c1", "b"), client="one")
    await broker.ask("the second one leaves", 35, {**GROUP, "clientID": "c2", "producerGroup": "PG"}, client="two")
    await broker.ask("a third one", 34, body=heartbeat("c3"), client="three")
    await broker.ask("who is there, and how", 203, GROUP)
    await broker.disconnect("three")
    await broker.ask("it may not be told", 200, body=b'{"groupName":"CG","notifyConsumerIdsChangedEnable":false}')
    await broker.ask("a fourth one", 34, body=heartbeat("c4"), client="four")
    await broker.follow()
    await broker.lead()


async def forms(broker: Broker) -> None:
    cpp = {
        "clientID": "cpp",
        "consumerDataSet": [
            {
                "groupName": "CG",
                "consumeType": 1,
                "messageModel": 1,
                "consumeFromWhere": 0,
                "subscriptionDataSet": [{"topic": "T1", "subString": "*", "subVersion": "7"}],
            }
        ],
    }
    go = {
        "clientID": "go",
        "consumerDataSet": [{"groupName": "CG", "consumeType": "Push", "messageModel": "BroadCasting"}],
    }
    without = {"clientID": "cpp", "isWithoutSub": True, "consumerDataSet": [{"groupName": "CG"}]}
    pop = {"clientID": "pop", "consumerDataSet": [{"groupName": "PopG", "consumeType": "CONSUME_POP"}]}
    system = {"clientID": "tools", "consumerDataSet": [{"groupName": "TOOLS_CONSUMER"}]}
    for what in (cpp, go, without, pop, system, {"clientID": "nobody"}):
        await broker.ask(f"of {what['clientID']}", 34, body=msgspec.json.encode(what), client=str(what["clientID"]))
    await broker.ask("who is there, and how", 203, GROUP)
    await broker.ask("what it brought about", 352, {"group": "PopG"})
    await broker.ask("what else it brought about", 351, {"topic": "%RETRY%CG"})


async def refused(broker: Broker) -> None:
    await broker.ask("nobody", 34, body=b'{"clientID":" "}')
    await broker.ask("a name that is none", 34, body=b'{"clientID":"c1","consumerDataSet":[{"groupName":"C G"}]}')
    await broker.ask(
        "a producer's name that is none", 34, body=b'{"clientID":"c1","producerDataSet":[{"groupName":""}]}'
    )
    await broker.ask("more than a heartbeat may hold", 34, body=(1 << 20) * b" " + b"{}")
    await broker.ask("a long id", 34, body=heartbeat(1_025 * "c"))
    many = HeartbeatData("c1", [ProducerData("PG")] * 4_097)
    await broker.ask("more groups than there may be", 34, body=encode_heartbeat(many))
    await broker.ask("leaving, nobody says who", 35, GROUP)
    await broker.ask("leaving, without having been there", 35, {**GROUP, "clientID": "c9"})
    for code in (38, 203, 208):
        await broker.ask("no group at all", code)
    await broker.send("one that is not answered", 34, body=heartbeat("c1"), oneway=True)
    await broker.ask("it counts", 38, GROUP)
    await broker.send("leaving without an answer", 35, {**GROUP, "clientID": "c1", "producerGroup": "PG"}, oneway=True)
    await broker.ask("it counts", 38, GROUP)


async def questions(broker: Broker) -> None:
    for code in (38, 203, 208):
        await broker.ask("a group that is not there", code, GROUP)
    broker.create_topic("T1", 2)
    await broker.ask("a message", 310, send_ext("T1"), b"hello")
    await broker.ask("a member", 34, body=heartbeat("c1"))
    for code in (38, 203, 208):
        await broker.ask("a group", code, GROUP)
        await broker.ask("a group, in binary", code, GROUP, serialize_type=1)
    await broker.ask("a commit", 15, {**GROUP, "topic": "T1", "queueId": "0", "commitOffset": "1"})
    await broker.ask("how far it is", 208, GROUP)
    await broker.ask("how far it is in a topic", 208, {**GROUP, "topic": "T1"})
    await broker.ask("how far it is in a topic that is not there", 208, {**GROUP, "topic": "T9"})
    await broker.disconnect()
    await broker.ask("how far it is without members", 208, GROUP)


async def elsewhere(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.ask("a member", 34, NOTICES, heartbeat("c1"))
    await broker.follow()
    await broker.ask("a heartbeat", 34, body=heartbeat("c2"), client="other")
    await broker.ask("leaving", 35, {**GROUP, "clientID": "c2", "producerGroup": "PG"}, client="other")
    for code in (38, 203, 208):
        await broker.ask("another one leads", code, {**GROUP, "noForward": "true"})
    await broker.ask("another one leads, which cannot be reached", 38, GROUP)
    await broker.ask("another one leads, which cannot be reached", 208, GROUP)
    await broker.lead()
    await broker.ask("who is there", 38, GROUP)
