"""Audit log: the request of a node that has no lines, and wrong numbers of lines."""

from tests.recorded.conversation import Record

READ_AUDIT = 20032


async def talk(record: Record) -> None:
    broker = record.broker("audit")
    await broker.ask("a log without lines", READ_AUDIT)
    await broker.ask("no lines", READ_AUDIT, {"maxLines": "0"})
    await broker.ask("too many lines", READ_AUDIT, {"maxLines": "501"})
