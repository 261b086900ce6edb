"""Delayed messages that their producers recall."""

from dledger_broker.features.delay.messages import DueMessages
from dledger_remoting.recalls import RecallHandle
from tests.broker.served_broker import send_ext
from tests.recorded.conversation import Broker, Record


async def talk(record: Record) -> None:
    await taken_back(record.broker("messages that are taken back"))
    await refused(record.broker("what cannot be taken back"))


def recall(handle: str, topic: str = "T1", **fields: str) -> dict[str, str]:
    return {"producerGroup": "PG", "topic": topic, "recallHandle": handle, **fields}


async def waiting(broker: Broker) -> str:
    """Store a delayed message, and return its handle."""
    broker.create_topic("T1")
    due_ms = broker.memory.env.wall_ms() + 60_000
    properties = f"UNIQ_KEY\x01K1\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    sent = await broker.ask("it waits", 310, send_ext("T1", properties=properties), b"later")
    await read_log(broker)
    return sent.ext["recallHandle"]


async def read_log(broker: Broker) -> None:
    """Let the time index read the applied entries. Nothing else does that here."""
    follower = broker.served.service.parts[DueMessages].index.rows.follower
    await broker.memory.env.finish(follower.fold())


async def taken_back(broker: Broker) -> None:
    handle = await waiting(broker)
    await broker.ask("it waits no more", 370, recall(handle))
    await broker.ask("again", 370, recall(handle), serialize_type=1)


async def refused(broker: Broker) -> None:
    handle = await waiting(broker)
    said = RecallHandle.decode(handle)
    await broker.ask("no handle", 370, recall("%%%"))
    await broker.ask("another group", 370, recall(said._replace(broker_group="broker-b").encode()))
    await broker.ask("another message", 370, recall(said._replace(unique_key="K9").encode()))
    await broker.ask("a topic that is not there", 370, recall(handle, "T9"))
    await broker.ask("no topic", 370, {"recallHandle": handle})
    await broker.follow()
    await broker.ask("at a node that does not lead", 370, recall(handle, noForward="true"))
    await broker.ask("and the leader cannot be reached", 370, recall(handle))
