"""POP: pop, acknowledge, change the invisible time, redeliver."""

import msgspec

from dledger_remoting.command import RemotingCommand
from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

POP, ACK, PEEK, CHANGE, NOTIFY, POLLING, BATCH_ACK = 200050, 200051, 200052, 200053, 200054, 200055, 200151
OF_GROUP = {"consumerGroup": "CG", "topic": "T1", "queueId": "-1"}
ASKED = {**OF_GROUP, "maxMsgNums": "2", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "initMode": "0"}


async def talk(record: Record) -> None:
    conversations = (
        (popped, "pops"),
        (in_order, "pops in order"),
        (leased_later, "pops whose lease begins later"),
        (refused, "pops that are refused"),
    )
    for conversation, what in conversations:
        await conversation(record.broker(what, group="CG", topic="T1"))
    await not_yet(record.broker("pops before they are active"))
    await elsewhere(record.broker("pops at a node that does not lead"))


async def send(broker: Broker, count: int) -> None:
    for number in range(count):
        await broker.ask("a message", 310, send_ext("T1"), b"%d" % number)


def point(popped: RemotingCommand, offset: int, queue: str = "0") -> dict[str, str]:
    """Return the fields by which an acknowledgement names a message of a delivery."""
    text = f"0 {popped.ext['popTime']} 60000 {queue} 0 broker-a 0 {offset}"
    return {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "extraInfo": text, "offset": str(offset)}


async def popped(broker: Broker) -> None:
    await send(broker, 4)
    await broker.ask("what a pop would get", PEEK, {**OF_GROUP, "maxMsgNums": "1"})
    await broker.ask("whether there is something", NOTIFY, {**OF_GROUP, "pollTime": "0", "bornTime": "0"})
    answer = await broker.ask("two messages", POP, ASKED)
    first, second = point(answer, 0), point(answer, 1)
    await broker.ask("one is done with", ACK, first)
    await broker.ask("it again, in binary", ACK, first, serialize_type=1)
    await broker.ask("the other is hidden for longer", CHANGE, {**second, "invisibleTime": "90000"})
    await broker.ask("it is acknowledged as it was", ACK, second)
    answer = await broker.ask("the rest, in binary", POP, ASKED, serialize_type=1)
    popped_ms = int(answer.ext["popTime"])
    row = {"c": "CG", "t": "T1", "r": "0", "so": 2, "q": 0, "rq": 0, "pt": popped_ms, "it": 60000, "b": "Aw=="}
    await broker.ask("both at once", BATCH_ACK, body=msgspec.json.encode({"brokerName": "b", "acks": [row]}))
    await broker.ask("both again", BATCH_ACK, body=msgspec.json.encode({"brokerName": "b", "acks": [row]}))
    await broker.ask("nothing is left", POP, ASKED)
    await broker.ask("nothing to peek at", PEEK, {**OF_GROUP, "maxMsgNums": "1"})
    await broker.ask("how many wait", POLLING, OF_GROUP)
    await broker.ask(
        "once more from the last on", 15, {**OF_GROUP, "queueId": "0", "commitOffset": "3", "reset": "true"}
    )
    await broker.ask("the last", POP, ASKED)


async def in_order(broker: Broker) -> None:
    await send(broker, 3)
    asked = {**ASKED, "order": "true", "attemptId": "first"}
    await broker.ask("two messages", POP, asked)
    again = await broker.ask("they again", POP, asked)
    await broker.ask("what follows has to wait", POP, {**asked, "attemptId": "second"})
    await broker.ask("one is done with", ACK, point(again, 0, "999"))


async def leased_later(broker: Broker) -> None:
    await send(broker, 1)
    answer = await broker.ask("a message", POP, {**ASKED, "dledgerLease": "anna", "dledgerConfirms": "true"})
    named = {**OF_GROUP, "clientId": "anna", "invisibleTime": "60000"}
    arrived = {**named, "deliveries": f"0 0 {answer.ext['popTime']}"}
    await broker.ask("it has arrived", 20021, arrived)
    await broker.ask("that again, in binary", 20021, arrived, serialize_type=1)
    await broker.ask("a delivery that is over", 20021, {**named, "deliveries": "0 0 1"})
    await broker.ask("no delivery", 20021, {**named, "deliveries": ""})
    await broker.ask("a text that names none", 20021, {**named, "deliveries": "0 0"})


async def refused(broker: Broker) -> None:
    await broker.ask("no fields", POP)
    await broker.ask("too many", POP, {**ASKED, "maxMsgNums": "33"})
    await broker.ask("for too long", POP, {**ASKED, "invisibleTime": "43200001"})
    await broker.ask("a queue that is not there", POP, {**ASKED, "queueId": "4"})
    await broker.ask("a topic that is not there", POP, {**ASKED, "topic": "ABSENT"})
    await broker.ask("a topic of the broker", POP, {**ASKED, "topic": "SCHEDULE_TOPIC_XXXX"})
    await broker.ask("a filter that cannot be read", POP, {**ASKED, "expType": "SQL92", "exp": "a >"})
    await broker.ask("no check point", ACK, {**OF_GROUP, "queueId": "0", "extraInfo": "x", "offset": "0"})
    unknown = {**OF_GROUP, "queueId": "0", "extraInfo": "0 1 2 0 0 b 0 0", "offset": "0"}
    await broker.ask("no such delivery", ACK, unknown)
    await broker.ask("no body", BATCH_ACK)
    await broker.ask("what only another node may tell", 20019)
    await broker.ask("what only another node may tell of leases", 20020, {"owner": "anna"})


async def not_yet(broker: Broker) -> None:
    del broker.memory.machine.state.activation.since["pop"]
    await broker.ask("a pop", POP, ASKED)


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    none = {"noForward": "true"}
    await broker.ask("a pop", POP, {**ASKED, **none})
    await broker.ask("a pop, and the leader cannot be reached", POP, ASKED)
