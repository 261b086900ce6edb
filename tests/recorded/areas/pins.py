"""Pins of the log: create, renew, release, list."""

from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

PIN = {"name": "job", "position": "100", "leaseMillis": "60000"}


async def talk(record: Record) -> None:
    await kept(record.broker("pins"))
    await refused(record.broker("pins that are refused"))
    await elsewhere(record.broker("pins at a node that does not lead"))


async def kept(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.ask("a message", 310, send_ext("T1"), b"hello")
    await broker.ask("none", 20015)
    await broker.ask("one is made", 20013, PIN)
    await broker.ask("another one, for as long as usual", 20013, {"name": "a/ö", "position": "0"}, serialize_type=1)
    await broker.send("one is made without an answer", 20013, {**PIN, "name": "quiet"}, oneway=True)
    await broker.ask("all", 20015)
    await broker.pass_time(1)
    await broker.ask("one is kept from further on", 20013, {**PIN, "position": "200", "leaseMillis": "1000"})
    await broker.ask("one is renewed", 20013, {**PIN, "renewal": "true"})
    await broker.ask("one that is not there is renewed", 20013, {**PIN, "name": "gone", "renewal": "true"})
    end = str(broker.memory.machine.applied_position)
    await broker.pass_time(1)
    await broker.ask("a range that names one", 20011, {"roles": "leader", "start": end, "end": end, "pin": "job"})
    await broker.ask("all, in binary", 20015, serialize_type=1)
    await broker.ask("one is given up", 20014, {"name": "job"})
    await broker.ask("it again", 20014, {"name": "job"}, serialize_type=1)
    await broker.send("one is given up without an answer", 20014, {"name": "quiet"}, oneway=True)
    await broker.ask("all", 20015)


async def refused(broker: Broker) -> None:
    broker.create_topic("T1")
    await broker.ask("no name", 20013, {**PIN, "name": ""})
    await broker.ask("a long name", 20013, {**PIN, "name": 128 * "ö"})
    await broker.ask("no lease", 20013, {**PIN, "leaseMillis": "0"})
    await broker.ask("a long lease", 20013, {**PIN, "leaseMillis": "3600001"})
    await broker.ask("a lease that is no number", 20013, {**PIN, "leaseMillis": "long"})
    await broker.ask("no position at all", 20013, {"name": "job"})
    await broker.ask("no name", 20014, {"name": ""})
    await broker.ask("no name at all", 20014)
    broker.note("the log is trimmed")
    broker.memory.node.trim(broker.memory.node.snapshot())
    await broker.ask("what is no longer kept", 20013, PIN)
    broker.stop_committing()
    end = str(broker.memory.log.end)
    first = await broker.send("one that is on its way", 20013, {**PIN, "position": end})
    second = await broker.send("one is given up", 20014, {"name": "other"})
    await broker.step_down()
    for opaque in (first, second):
        await broker.answer(opaque)
    await broker.lead()
    broker.note("a member does not understand pins")
    broker.memory.machine.state.members.put(broker.config.node_id, (16,))
    await broker.ask("one is made", 20013, {**PIN, "position": end})
    await broker.ask("one is given up", 20014, {"name": "job"})


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    none = {"noForward": "true"}
    await broker.ask("one is made", 20013, {**PIN, **none})
    await broker.ask("one is given up", 20014, {"name": "job", **none})
    await broker.ask("all", 20015, none)
    await broker.ask("all, and the leader cannot be reached", 20015)
    await broker.ask("one is made, and the leader cannot be reached", 20013, PIN, serialize_type=1)
