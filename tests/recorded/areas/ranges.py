"""Reads of the log itself: plans, ranges, and the committed end."""

from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

LEADER = {"roles": "leader"}
FAR = str(1 << 40)


async def talk(record: Record) -> None:
    await read(record.broker("a log that is read", group_ordinal=3))
    await refused(record.broker("reads that are refused"))
    await elsewhere(record.broker("a follower's log"))


async def filled(broker: Broker) -> None:
    """Store messages in T1 and T2, in entries that fill several segments."""
    for topic in ("T1", "T2"):
        broker.create_topic(topic)
    for number in range(4):
        await broker.ask("a message", 310, send_ext("T1", number), 30_000 * b"x")
        await broker.pass_time(0.1)
    await broker.ask("a message", 310, send_ext("T2"), b"hello")


async def read(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("a plan", 20010, LEADER)
    await broker.ask("a plan, in binary", 20010, LEADER, serialize_type=1)
    await broker.ask("a plan of slices with times", 20010, {**LEADER, "sliceBytes": "65536", "times": "true"})
    await broker.ask("a plan of some topics", 20010, {**LEADER, "topics": "T2,T9,T2"})
    await broker.ask("a plan from a position on", 20010, {**LEADER, "startPosition": "60000", "topics": ""})
    end = broker.memory.machine.applied_position
    await broker.ask("how far the log is", 20012)
    await broker.ask("how far the log is, in binary", 20012, serialize_type=1)
    first = await broker.ask(
        "a range, a few bytes", 20011, {"roles": "follower,leader", "start": "0", "end": str(end), "maxBytes": "1"}
    )
    start = first.ext["end"]
    await broker.ask("what follows, in binary", 20011, {**LEADER, "start": start, "end": str(end)}, serialize_type=1)
    await broker.ask("nothing", 20011, {**LEADER, "start": str(end), "end": str(end)})
    await broker.send("one that is not answered", 20010, LEADER, oneway=True)
    await broker.send("one that is not answered", 20011, {**LEADER, "start": "0", "end": str(end)}, oneway=True)
    await broker.send("one that is not answered", 20012, oneway=True)


async def refused(broker: Broker) -> None:
    await filled(broker)
    for code, ext in ((20010, {}), (20011, {"start": "0", "end": "0"})):
        await broker.ask("from followers", code, ext)
        await broker.ask("from learners", code, {**ext, "roles": "learner"})
        await broker.ask("from a role that is none", code, {**ext, "roles": "leader,king"})
        await broker.ask("from too many roles", code, {**ext, "roles": 20 * "leader,"})
        await broker.ask("more than there is", code, {**ext, **LEADER, "minCommit": FAR})
        await broker.ask("a position that is no number", code, {**ext, "minCommit": "much"})
    await broker.ask("a plan from before the beginning", 20010, {**LEADER, "startPosition": "-1"})
    await broker.ask("a range that ends before it begins", 20011, {**LEADER, "start": "2", "end": "1"})
    await broker.ask("a range beyond the end", 20011, {**LEADER, "start": "0", "end": FAR})
    await broker.ask("no range at all", 20011, LEADER)
    broker.note("the log is trimmed")
    broker.memory.node.trim(broker.memory.node.snapshot())
    await broker.ask("what is no longer kept", 20011, {**LEADER, "start": "0", "end": "100"})
    await broker.ask("what is kept", 20010, LEADER)


async def elsewhere(broker: Broker) -> None:
    await filled(broker)
    await broker.follow()
    end = str(broker.memory.machine.applied_position)
    await broker.ask("a plan", 20010, {"topics": "T2"})
    await broker.ask("a plan of a leader", 20010, LEADER)
    await broker.ask("a range", 20011, {"start": "0", "end": end, "maxBytes": "100"})
    await broker.ask("a range of a leader", 20011, {**LEADER, "start": "0", "end": end})
    await broker.ask("how far the log is", 20012, {"noForward": "true"})
    await broker.ask("how far the log is, and the leader cannot be reached", 20012)
