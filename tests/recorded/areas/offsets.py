"""Offsets: of consumer groups, and of queues by their ends and by time."""

from tests.recorded.areas.pulling import pull_ext
from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

QUEUE = {"topic": "T1", "queueId": "0"}
GROUP = {"consumerGroup": "CG", **QUEUE}
QUESTIONS: tuple[tuple[int, dict[str, str]], ...] = (
    (14, GROUP),
    (29, {**QUEUE, "timestamp": "1700000000500"}),
    (30, QUEUE),
    (31, QUEUE),
    (32, QUEUE),
)


async def talk(record: Record) -> None:
    await committed(record.broker("offsets of groups"))
    await refused(record.broker("offsets that are refused"))
    await of_queues(record.broker("offsets of queues"))
    await elsewhere(record.broker("offsets at a node that does not lead"))


async def filled(broker: Broker) -> None:
    """Store three messages in queue 0 of T1, within one second."""
    broker.create_topic("T1")
    for body in (b"one", b"two", b"three"):
        await broker.ask("a message", 310, send_ext("T1"), body)
        await broker.pass_time(0.4)


async def committed(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("a young topic", 14, GROUP)
    await broker.ask("a young topic, and who asks wants to know", 14, {**GROUP, "setZeroIfNotFound": "false"})
    await broker.ask("an empty queue", 14, {**GROUP, "queueId": "1"})
    await broker.ask("no such topic", 14, {**GROUP, "topic": "T9"})
    await broker.ask("the group is made", 11, pull_ext("T1"))
    await broker.ask("a commit", 15, {**GROUP, "commitOffset": "2"})
    await broker.ask("it again", 15, {**GROUP, "commitOffset": "2"})
    await broker.ask("what was committed", 14, GROUP)
    await broker.ask("what was committed, in binary", 14, GROUP, serialize_type=1)
    await broker.ask("back", 15, {**GROUP, "commitOffset": "1"}, serialize_type=1)
    await broker.ask("by a pull", 11, pull_ext("T1", sysFlag="5", commitOffset="3"))
    await broker.ask("what was committed", 14, GROUP)
    await broker.send("a commit that is not answered", 15, {**GROUP, "commitOffset": "0"}, oneway=True)
    await broker.ask("what was committed", 14, GROUP)
    await broker.ask("nothing", 15, {**GROUP, "commitOffset": "-1"})
    await broker.ask("more than there is", 15, {**GROUP, "commitOffset": str(1 << 62)}, client="other")
    await broker.ask("what was committed", 14, GROUP)
    system = {**GROUP, "consumerGroup": "TOOLS_CONSUMER"}
    await broker.ask("a group that belongs to the system", 15, {**system, "commitOffset": "1"})
    await broker.ask("what it committed", 14, system)


async def refused(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("no such group", 15, {**GROUP, "commitOffset": "2"})
    await broker.ask("the group is made", 11, pull_ext("T1"))
    await broker.ask("no such topic", 15, {**GROUP, "topic": "T9", "commitOffset": "2"})
    await broker.ask("no such queue", 15, {**GROUP, "queueId": "4", "commitOffset": "2"})
    await broker.ask("an offset that is no number", 15, {**GROUP, "commitOffset": "two"})
    await broker.ask("no offset at all", 15, GROUP)
    await broker.send("one that is not answered", 15, {**GROUP, "topic": "T9", "commitOffset": "2"}, oneway=True)
    for code, ext in QUESTIONS:
        await broker.ask("a queue that is no number", code, {**ext, "queueId": "one"})
        await broker.ask("nothing at all", code)
    await broker.ask("a bound that is none", 29, {**QUEUE, "timestamp": "0", "boundaryType": "MIDDLE"})
    broker.stop_committing()
    waiting = await broker.send("a commit that is on its way", 15, {**GROUP, "commitOffset": "2"})
    await broker.pass_time(0.5)
    await broker.step_down()
    await broker.answer(waiting)


async def of_queues(broker: Broker) -> None:
    await filled(broker)
    for name, ext in (
        ("a queue", QUEUE),
        ("an empty queue", {**QUEUE, "queueId": "1"}),
        ("no such topic", {**QUEUE, "topic": "T9"}),
    ):
        await broker.ask(f"the end of {name}", 30, ext)
        await broker.ask(f"the end of {name}, in binary", 30, {**ext, "committed": "true"}, serialize_type=1)
        await broker.ask(f"the beginning of {name}", 31, ext)
        await broker.ask(f"the first time of {name}", 32, ext)
        await broker.ask(f"a time in {name}", 29, {**ext, "timestamp": "1700000000400"})
    for bound in ("LOWER", "UPPER", "upper"):
        for timestamp in ("0", "1700000000399", "1700000000400", "1700000000401", "1700000009999"):
            await broker.ask("a time", 29, {**QUEUE, "timestamp": timestamp, "boundaryType": bound})


async def elsewhere(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("the group is made", 11, pull_ext("T1"))
    await broker.ask("a commit", 15, {**GROUP, "commitOffset": "2"})
    await broker.follow()
    for code, ext in (*QUESTIONS, (15, {**GROUP, "commitOffset": "3"})):
        await broker.ask("another one leads", code, {**ext, "noForward": "true"})
    await broker.ask("another one leads, which cannot be reached", 14, GROUP)
    await broker.send("a commit that is not answered", 15, {**GROUP, "commitOffset": "1"}, oneway=True)
    await broker.ask("a commit by a pull", 11, pull_ext("T1", sysFlag="5", commitOffset="3"))
    await broker.lead()
    await broker.ask("what was committed", 14, GROUP)
