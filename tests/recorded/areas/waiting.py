"""Messages that wait: the lists of delayed messages and of open halves, empty and with wrong numbers."""

from tests.recorded.areas.recalls import read_log
from tests.recorded.conversation import Record

LIST_DELAYED, LIST_HALVES = 20033, 20034


async def talk(record: Record) -> None:
    broker = record.broker("waiting")
    await read_log(broker)
    for name, code in (("delayed", LIST_DELAYED), ("halves", LIST_HALVES)):
        await broker.ask(f"{name}: none", code)
        await broker.ask(f"{name}: no rows", code, {"maxRows": "0"})
        await broker.ask(f"{name}: too many rows", code, {"maxRows": "101"})
