"""Leadership: the leaders that a node has seen, and handovers that cannot begin."""

from tests.recorded.conversation import Record

LIST, HAND_OVER = 20030, 20031


async def talk(record: Record) -> None:
    broker = record.broker("leadership")
    await broker.ask("the leaders that it has seen", LIST)
    await broker.ask("a handover to itself", HAND_OVER, {"nodeId": "fake-n0"})
    await broker.ask("a handover to nobody", HAND_OVER, {"nodeId": "n9"})
    await broker.ask("a handover without a name", HAND_OVER)
