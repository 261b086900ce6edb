"""Settings: configuration keys that are changed while nodes run."""

from tests.recorded.conversation import Broker, Record

PUT, TELL = 25, 26


async def talk(record: Record) -> None:
    await put(record.broker("settings"))
    await refused(record.broker("settings that are refused"))
    await elsewhere(record.broker("settings at a node that does not lead"))


async def put(broker: Broker) -> None:
    await broker.ask("by RocketMQ's names", PUT, body=b"fileReservedTime=48\nautoCreateTopicEnable=false\n")
    await broker.ask("by ours, in binary", PUT, body=b"transaction_check_max=3", serialize_type=1)
    await broker.ask("taken back", PUT, body=b"fileReservedTime=")
    # The answer is not recorded: it has every key with its default, so each new key would change it.
    await broker.send("what counts then", TELL, oneway=True)


async def refused(broker: Broker) -> None:
    await broker.ask("nothing", PUT)
    await broker.ask("what is no text", PUT, body=b"\xff")
    await broker.ask("no line of a key and a value", PUT, body=b"autoCreateTopicEnable")
    await broker.ask("an unknown key", PUT, body=b"autoCreateTopic=true")
    await broker.ask("a path", PUT, body=b"storePathRootDir=/elsewhere")
    await broker.ask("what is read at a start", PUT, body=b"fileReservedTime=48\nflushDiskType=ASYNC_FLUSH")
    await broker.ask("a value out of bounds", PUT, body=b"fileReservedTime=0")
    await broker.ask("a value of another kind", PUT, body=b"autoCreateTopicEnable=maybe")
    await broker.ask("two values", PUT, body=b"fileReservedTime=48\nretention_hours=49")


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    await broker.ask("set there", PUT, body=b"fileReservedTime=48")
