"""Assignments: the queues of group members, and setting and reading modes."""

import json

from tests.recorded.conversation import Broker, Record

MODE = {"consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0, "topic": "T1"}
QUESTION = {
    "clientId": "anna",
    "consumerGroup": "CG",
    "messageModel": "CLUSTERING",
    "strategyName": "AVG",
    "topic": "T1",
}


async def talk(record: Record) -> None:
    await assigned(record.broker("assignments", topic="T1"))
    await refused(record.broker("assignments that are refused", topic="T1", max_request_modes=1))
    await not_yet(record.broker("assignments before they are active"))
    await elsewhere(record.broker("assignments at a node that does not lead"))


def body(fields: dict[str, object], **changed: object) -> bytes:
    return json.dumps({**fields, **changed}).encode()


async def assigned(broker: Broker) -> None:
    await broker.ask("a group without members", 400, body=body(QUESTION))
    await broker.ask("one that broadcasts", 400, body=body(QUESTION, messageModel="BROADCASTING"))
    await broker.ask("no mode is set", 402)
    await broker.ask("a group that pops", 401, body=body(MODE))
    await broker.ask(
        "it broadcasts, in binary", 400, body=body(QUESTION, messageModel="BROADCASTING"), serialize_type=1
    )
    await broker.ask("the mode is told", 402)
    await broker.ask("pops are to be kept elsewhere", 200056)


async def refused(broker: Broker) -> None:
    await broker.ask("no body", 400)
    await broker.ask("no client", 400, body=body(QUESTION, clientId=""))
    await broker.ask("another strategy", 400, body=body(QUESTION, strategyName="CONSISTENT_HASH"))
    await broker.ask("a topic of the broker", 400, body=body(QUESTION, topic="SCHEDULE_TOPIC_XXXX"))
    await broker.ask("a topic that is not there", 400, body=body(QUESTION, topic="ABSENT"))
    await broker.ask("no body", 401)
    await broker.ask("another mode", 401, body=body(MODE, mode="PUSH"))
    await broker.ask("a retry topic", 401, body=body(MODE, topic="%RETRY%CG"))
    await broker.ask("as many as there may be", 401, body=body(MODE))
    await broker.ask("one more", 401, body=body(MODE, topic="T2"))


async def not_yet(broker: Broker) -> None:
    del broker.memory.machine.state.activation.since["assignments"]
    for code in (400, 401, 402):
        await broker.ask("a request", code, body=body(QUESTION))


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    none = {"noForward": "true"}
    await broker.ask("a question", 400, none, body(QUESTION))
    await broker.ask("a mode", 401, none, body(MODE))
    await broker.ask("all modes", 402, none)
