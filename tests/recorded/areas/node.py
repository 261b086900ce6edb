"""Status of a node, and its answers to unknown requests."""

from dledger_broker.features.runtime.description import RuntimeInfo
from dledger_remoting.codes import LanguageCode, RequestCode
from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Record

NOT_UNDERSTOOD = (
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.REGISTER_FILTER_SERVER,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
)
"""Codes that belong to no feature."""


async def talk(record: Record) -> None:
    broker = record.broker("a node", http_port=10913)
    broker.create_topic("T1")
    await broker.ask("a message", 310, send_ext("T1"), b"hello")
    broker.served.service.parts[RuntimeInfo].start()
    await broker.pass_time(2)
    await broker.ask("what it says of itself", 28)
    await broker.ask("what it says of itself, in binary", 28, serialize_type=1)
    await broker.send("one that is not answered", 28, oneway=True)
    for code in NOT_UNDERSTOOD:
        await broker.ask("what it does not know", code)
    await broker.ask("what nobody knows", 31_999, {"a": "1"}, b"hello", serialize_type=1)
    await broker.send("what nobody knows, without an answer", 31_999, oneway=True)
    for language in (LanguageCode.CPP, LanguageCode.GO, LanguageCode.OTHER):
        await broker.ask(
            "a client in another language", 30, {"topic": "T1", "queueId": "0"}, language=language, version=403
        )
    await broker.follow()
    await broker.ask("what it says of itself while another one leads", 28)
    await broker.ask("what it does not know while another one leads", RequestCode.QUERY_CORRECTION_OFFSET)
    broker.served.service.parts[RuntimeInfo].stop()
