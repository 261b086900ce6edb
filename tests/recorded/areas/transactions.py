"""Transactions: half messages, their ends, and refusals."""

from tests.recorded.areas.sending import long_ext, send_ext
from tests.recorded.conversation import Broker, Record

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"


def end_ext(position: int, offset: int, what: int, **fields: str) -> dict[str, str]:
    numbers = {"tranStateTableOffset": str(offset), "commitLogOffset": str(position), "commitOrRollback": str(what)}
    return {"producerGroup": "PG", **numbers, "msgId": "K1", **fields}


async def talk(record: Record) -> None:
    await ended(record.broker("transactions"))
    await refused(record.broker("transactions that are refused", max_open_halves=1))
    await elsewhere(record.broker("transactions at a node that does not lead"))


async def half(broker: Broker, what: str, queue_id: int = 0, **letters: str) -> tuple[int, int]:
    answer = await broker.ask(what, 310, send_ext("T1", queue_id, HALF, f="4", **letters), b"hello")
    return int(answer.ext["msgId"][-16:], 16), int(answer.ext["queueOffset"])


async def ended(broker: Broker) -> None:
    broker.create_topic("T1")
    committed = await half(broker, "a half", 2)
    rolled_back = await half(broker, "another one")
    await broker.ask("one by names, in binary", 10, long_ext("T1", 0, HALF, sysFlag="4"), b"hello", serialize_type=1)
    await broker.ask("it is not to be seen", 30, {"topic": "T1", "queueId": "2"})
    await broker.ask("not known yet", 37, end_ext(*committed, 0))
    await broker.ask("committed", 37, end_ext(*committed, 8))
    await broker.ask("it is to be seen", 30, {"topic": "T1", "queueId": "2"})
    await broker.ask("committed again, in binary", 37, end_ext(*committed, 8), serialize_type=1)
    await broker.ask("rolled back behind that", 37, end_ext(*committed, 12))
    await broker.send("rolled back without an answer", 37, end_ext(*rolled_back, 12), oneway=True)
    await broker.ask("rolled back", 37, end_ext(*rolled_back, 12))
    await broker.ask("committed behind that", 37, end_ext(*rolled_back, 8))


async def refused(broker: Broker) -> None:
    broker.create_topic("T1")
    position, offset = await half(broker, "a half")
    await broker.ask("one more", 310, send_ext("T1", 0, HALF, f="4"), b"hello")
    await broker.ask("of another group", 37, end_ext(position, offset, 8, producerGroup="others"))
    await broker.ask("at another offset", 37, end_ext(position, offset + 1, 8))
    await broker.ask("where none is", 37, end_ext(position + 1, offset, 8))
    await broker.ask("in no known way", 37, end_ext(position, offset, 3))
    await broker.ask("nothing at all", 37)
    await broker.ask("no half", 310, send_ext("T1", 0, "UNIQ_KEY\x01K1\x02", f="4"), b"hello")
    late = HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x013601\x02"
    await broker.ask("an immunity that is too long", 310, send_ext("T1", 0, late, f="4"), b"hello")
    await broker.ask("what was never given up", 323, {"msgId": f"0A00000100002A9F{position:016X}"})
    await broker.ask("no id", 323, {"msgId": "none"})
    await broker.ask("no id at all", 323)
    broker.memory.delete_topic("T1")
    await broker.ask("its topic is gone", 37, end_ext(position, offset, 8))


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    none = {"noForward": "true"}
    await broker.ask("an end", 37, {**end_ext(100, 0, 8), **none})
    await broker.ask("one that was given up", 323, {"msgId": "0A00000100002A9F0000000000000005", **none})
    await broker.ask("an end, and the leader cannot be reached", 37, end_ext(100, 0, 8))
