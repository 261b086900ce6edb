"""Messages that are sent back: they are redelivered, or become dead letters."""

from tests.recorded.areas.queries import filled
from tests.recorded.conversation import Broker, Record


async def talk(record: Record) -> None:
    await sent_back(record.broker("messages that are sent back"))
    await refused(record.broker("what cannot be sent back", auto_create_group=False))


def back(offset: int, **fields: str) -> dict[str, str]:
    return {"offset": str(offset), "group": "CG", "delayLevel": "0", **fields}


async def sent_back(broker: Broker) -> None:
    position = int(await filled(broker))
    await broker.ask("one comes again", 36, back(position))
    await broker.ask("again", 36, back(position, delayLevel="2", maxReconsumeTimes="3"), serialize_type=1)
    await broker.ask("it is a dead letter at once", 36, back(position, delayLevel="-1"))
    await broker.ask("no retries are allowed", 36, back(position, maxReconsumeTimes="0"))
    await broker.send("without an answer", 36, back(position), oneway=True)


async def refused(broker: Broker) -> None:
    position = int(await filled(broker))
    await broker.ask("a group that is not there", 36, back(position, group="absent"))
    await broker.ask("no group", 36, {"offset": "0", "delayLevel": "0"})
    broker.create_group("CG")
    await broker.ask("nothing stands there", 36, back(position + 1))
    await broker.ask("below the log", 36, back(-1))
    await broker.follow()
    await broker.ask("at a node that does not lead", 36, back(position, noForward="true"))
    await broker.ask("and the leader cannot be reached", 36, back(position))
