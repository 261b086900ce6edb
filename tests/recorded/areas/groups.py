"""Consumer groups: create, change, delete, show."""

from tests.recorded.areas.pulling import pull_ext
from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

WHOLE = (
    b'{"attributes":{"a":"1"},"brokerId":3,"consumeBroadcastEnable":false,"consumeEnable":true,'
    b'"consumeFromMinEnable":false,"consumeMessageOrderly":true,"consumeTimeoutMinute":7,"groupName":"CG",'
    b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":2,"notifyConsumerIdsChangedEnable":false,'
    b'"retryMaxTimes":5,"retryQueueNums":4,"subscriptionDataSet":null,"whichBrokerWhenConsumeSlowly":2}'
)


async def talk(record: Record) -> None:
    await changed(record.broker("groups that are made and changed"))
    await refused(record.broker("groups that are refused"))
    await elsewhere(record.broker("groups at a node that does not lead"))


async def changed(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.ask("none", 201)
    await broker.ask("one is made", 200, body=b'{"groupName":"CG"}')
    await broker.ask("it", 352, {"group": "CG"})
    await broker.ask("it is changed", 200, body=WHOLE)
    await broker.ask("it, in binary", 352, {"group": "CG"}, serialize_type=1)
    await broker.send("one is made without an answer", 200, body=b'{"groupName":"CG2"}', oneway=True)
    await broker.ask("all", 201)
    await broker.ask("all, in binary", 201, serialize_type=1)
    commit = {"topic": "T1", "queueId": "0", "commitOffset": "2"}
    for group in ("CG", "CG2"):
        await broker.ask("a commit", 15, {"consumerGroup": group, **commit})
    await broker.ask("one is deleted", 207, {"groupName": "CG"})
    await broker.ask(
        "one is deleted with its offsets", 207, {"groupName": "CG2", "cleanOffset": "true"}, serialize_type=1
    )
    for group in ("CG", "CG2"):
        await broker.ask("its offset", 14, {"consumerGroup": group, "topic": "T1", "queueId": "0"})
    await broker.ask("it again", 207, {"groupName": "CG"})
    await broker.send("without an answer", 207, {"groupName": "CG"}, oneway=True)
    await broker.ask("what is no longer there", 352, {"group": "CG"})
    await broker.ask("one comes by a pull", 11, pull_ext("T1", consumerGroup="CG3"))
    await broker.ask("one comes by a send", 310, send_ext("%RETRY%CG4", j="1"), b"hello")
    await broker.ask("all", 201)


async def refused(broker: Broker) -> None:
    await broker.ask("a name that is none", 200, body=b'{"groupName":"C G"}')
    await broker.ask("no name", 200, body=b'{"groupName":""}')
    await broker.ask("too many queues", 200, body=b'{"groupName":"CG","retryQueueNums":65537}')
    await broker.ask("fewer times than none", 200, body=b'{"groupName":"CG","retryMaxTimes":-1}')
    await broker.ask("too many attributes", 200, body=b'{"groupName":"CG","attributes":{"a":"' + 4_096 * b"b" + b'"}}')
    await broker.ask("a group of the system is deleted", 207, {"groupName": "TOOLS_CONSUMER"})
    await broker.ask("a name that is none is deleted", 207, {"groupName": "C G"})
    await broker.ask("no name at all", 207)
    await broker.ask("no yes and no no", 207, {"groupName": "CG", "cleanOffset": "perhaps"})
    await broker.ask("what is not there", 352, {"group": "CG"})
    await broker.ask("no name at all", 352)
    broker.stop_committing()
    first = await broker.send("one that is on its way", 200, body=b'{"groupName":"CG"}')
    second = await broker.send("a deletion that is on its way", 207, {"groupName": "CG2"})
    await broker.step_down()
    for opaque in (first, second):
        await broker.answer(opaque)


async def elsewhere(broker: Broker) -> None:
    await broker.ask("one is made", 200, body=b'{"groupName":"CG"}')
    await broker.follow()
    none = {"noForward": "true"}
    await broker.ask("one is made", 200, none, b'{"groupName":"CG2"}')
    await broker.ask("one is deleted", 207, {"groupName": "CG", **none})
    await broker.ask("one is shown", 352, {"group": "CG", **none})
    await broker.ask("all", 201, none)
    await broker.ask("all, and the leader cannot be reached", 201, serialize_type=1)
    await broker.ask("one is deleted, and the leader cannot be reached", 207, {"groupName": "CG"})
