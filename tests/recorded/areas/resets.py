"""Resets of consumer groups, copies of their offsets, and the positions of their members."""

from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

RESET, CLONE, STATUS, PULL, QUERY, COMMIT = 222, 314, 223, 11, 14, 15
OF_QUEUE = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
ASKED = {"topic": "T1", "group": "CG", "timestamp": "-1", "isForce": "true"}
PULLED = {
    **OF_QUEUE,
    "queueOffset": "3",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}


async def talk(record: Record) -> None:
    await reset(record.broker("resets", group="CG", topic="T1"))
    await refused(record.broker("resets that are refused", group="CG", topic="T1"))


async def reset(broker: Broker) -> None:
    for number in range(3):
        await broker.ask("a message", 310, send_ext("T1"), b"%d" % number)
    await broker.ask("to the end", RESET, ASKED)
    await broker.ask("to the beginning, in binary", RESET, {**ASKED, "timestamp": "0"}, serialize_type=1)
    await broker.ask("a commit from before", COMMIT, {**OF_QUEUE, "commitOffset": "2"})
    await broker.ask("where the group is", QUERY, OF_QUEUE)
    await broker.ask("a pull from before", PULL, PULLED)
    await broker.ask("a pull from there on", PULL, {**PULLED, "queueOffset": "0"})
    await broker.ask("one queue, at an offset", RESET, {**ASKED, "queueId": "0", "offset": "1"})
    await broker.ask("a copy", CLONE, {"srcGroup": "CG", "destGroup": "copy", "topic": "T1", "offline": "true"})
    await broker.ask("where the copy is", QUERY, {**OF_QUEUE, "consumerGroup": "copy"})


async def refused(broker: Broker) -> None:
    await broker.ask("no fields", RESET)
    await broker.ask("a group that is not there", RESET, {**ASKED, "group": "ABSENT"})
    await broker.ask("a topic that is not there", RESET, {**ASKED, "topic": "ABSENT"})
    await broker.ask("a queue that is not there", RESET, {**ASKED, "queueId": "64"})
    await broker.ask("an offset behind the end", RESET, {**ASKED, "queueId": "0", "offset": "9"})
    await broker.ask("members where there are none", STATUS, {"topic": "T1", "group": "CG"})
    await broker.ask("a copy without a name", CLONE, {"srcGroup": "CG"})
