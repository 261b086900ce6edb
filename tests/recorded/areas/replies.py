"""Replies on their way to the requesting client."""

from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand, encode_command
from tests.recorded.areas.membership import heartbeat
from tests.recorded.areas.sending import long_ext, send_ext
from tests.recorded.conversation import Broker, Record

REPLY = "CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01c1\x02MSG_TYPE\x01reply\x02"


async def talk(record: Record) -> None:
    await passed_on(record.broker("replies to a client that waits"))
    await refused(record.broker("replies that are refused"))


async def passed_on(broker: Broker) -> None:
    broker.create_topic("replies")
    await broker.ask("who waits", 34, body=heartbeat("c1"), client="one")
    sent = await broker.send("a reply", 325, send_ext("replies", properties=REPLY), b"because", client="two")
    taken = RemotingCommand(0, opaque=1_000_000_002, flag=FLAG_RESPONSE)
    await broker.feed("it is taken", encode_command(taken), client="one")
    await broker.answer(sent, "two")
    await broker.ask("nobody takes it", 324, long_ext("replies", properties=REPLY), b"because", client="two")


async def refused(broker: Broker) -> None:
    broker.create_topic("replies")
    await broker.ask("nobody waits", 325, send_ext("replies", properties=REPLY), b"because")
    await broker.ask("to nobody", 325, send_ext("replies", properties=""), b"because")
    await broker.ask("no such topic", 324, long_ext("no-replies", properties=REPLY), b"because")
    await broker.ask("no such queue", 324, long_ext("replies", 9, REPLY), b"because")
    await broker.ask("nothing at all", 325)
