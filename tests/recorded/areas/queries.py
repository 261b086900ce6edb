"""Single messages, by key and by position."""

from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

BY_KEY = {"topic": "T1", "key": "b", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
BY_UNIQUE_KEY = {**BY_KEY, "key": "K1", "_UNIQUE_KEY_QUERY": "true"}


async def talk(record: Record) -> None:
    await found(record.broker("messages with keys"))
    await refused(record.broker("questions that are refused"))
    await elsewhere(record.broker("questions to a node that does not lead"))


async def filled(broker: Broker) -> str:
    """Store two messages with keys in T1, and return the position of the first."""
    broker.create_topic("T1")
    keyed = "UNIQ_KEY\x01K1\x02KEYS\x01a b\x02"
    sent = await broker.ask("a message", 310, send_ext("T1", properties=keyed), b"hello")
    await broker.pass_time(0.3)
    await broker.ask("another one", 310, send_ext("T1", 1, properties="UNIQ_KEY\x01K2\x02KEYS\x01b\x02"), b"world")
    return str(int(sent.ext["msgId"][16:], 16))


async def found(broker: Broker) -> None:
    position = await filled(broker)
    await broker.ask("by a key", 12, BY_KEY)
    await broker.ask("by a key, in binary", 12, BY_KEY, serialize_type=1)
    await broker.ask("the newest", 12, {**BY_KEY, "maxNum": "1"})
    await broker.ask("those that are older", 12, {**BY_KEY, "endTimestamp": "1700000000100"})
    await broker.ask("those that are younger", 12, {**BY_KEY, "beginTimestamp": "1700000000100"})
    await broker.ask("by a unique key", 12, BY_UNIQUE_KEY)
    await broker.send("one that is not answered", 12, BY_KEY, oneway=True)
    await broker.ask("by position", 33, {"offset": position})
    await broker.ask("by position, in binary", 33, {"offset": position, "topic": "T1"}, serialize_type=1)
    await broker.send("one that is not answered", 33, {"offset": position}, oneway=True)


async def refused(broker: Broker) -> None:
    position = int(await filled(broker))
    await broker.ask("a key that no message has", 12, {**BY_KEY, "key": "c"})
    await broker.ask("a key that is no unique one", 12, {**BY_UNIQUE_KEY, "key": "b"})
    await broker.ask("no such topic", 12, {**BY_KEY, "topic": "T9"})
    await broker.ask("no messages wanted", 12, {**BY_KEY, "maxNum": "0"})
    await broker.ask("times that are none", 12, {**BY_KEY, "beginTimestamp": "today"})
    await broker.ask("nothing at all", 12)
    for offset in (position + 1, 0, -1, 1 << 40):
        await broker.ask("where no message begins", 33, {"offset": str(offset)})
    await broker.ask("a position that is no number", 33, {"offset": "here"})
    await broker.ask("nothing at all", 33)


async def elsewhere(broker: Broker) -> None:
    position = await filled(broker)
    await broker.follow()
    await broker.ask("by a key", 12, BY_KEY)
    await broker.ask("by a key that no message has here", 12, {**BY_KEY, "key": "c", "noForward": "true"})
    await broker.ask("by a key that no message has here", 12, {**BY_KEY, "key": "c"})
    await broker.ask("by position", 33, {"offset": position})
    await broker.ask("where no message begins here", 33, {"offset": "0", "noForward": "true"})
    await broker.ask("where no message begins here", 33, {"offset": "0"}, serialize_type=1)
