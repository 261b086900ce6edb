"""Quotas: set, read, and the answers to requests beyond a quota."""

from tests.recorded.conversation import Broker, Record

SEND, PUT, LIST = 310, 20017, 20018
FIELDS = {"a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}


async def talk(record: Record) -> None:
    await put(record.broker("quotas"))
    await elsewhere(record.broker("quotas at a node that does not lead"))


async def put(broker: Broker) -> None:
    broker.memory.create_topic("T1")
    await broker.ask("none", LIST)
    await broker.ask("of a topic", PUT, body=b'{"kind":"topic","name":"T1","messagesPerSecond":1}')
    await broker.ask("of an account", PUT, body=b'{"kind":"account","name":"app","bytesPerSecond":9}', serialize_type=1)
    await broker.ask("within it", SEND, FIELDS, b"x")
    await broker.send("beyond it, held", SEND, FIELDS, b"x")
    await broker.pass_time(1.1)
    await broker.ask("all of them", LIST)
    await broker.ask("taken back", PUT, body=b'{"kind":"topic","name":"T1"}')
    await broker.ask("nothing", PUT)
    await broker.ask("of a host", PUT, body=b'{"kind":"host","name":"a","messagesPerSecond":1}')
    await broker.ask("of nobody", PUT, body=b'{"kind":"topic","name":"","messagesPerSecond":1}')
    await broker.ask("less than none", PUT, body=b'{"kind":"topic","name":"T1","messagesPerSecond":-1}')


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    await broker.ask("set there", PUT, body=b'{"kind":"topic","name":"T1","messagesPerSecond":1}')
    await broker.ask("told there", LIST)
