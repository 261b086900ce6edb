"""Questions to one consumer: forwarded, answered, or refused."""

from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand, encode_command
from tests.recorded.areas.membership import heartbeat
from tests.recorded.areas.sending import send_ext
from tests.recorded.conversation import Broker, Record

CONSUMER = {"consumerGroup": "CG", "clientId": "c1"}


async def talk(record: Record) -> None:
    await answered(record.broker("questions to a consumer"))
    await elsewhere(record.broker("questions to a consumer at a node that does not lead"))


async def answered(broker: Broker) -> None:
    broker.create_topic("T1", 1)
    await broker.ask("nobody is there", 307, CONSUMER)
    for code in (307, 309):
        await broker.ask("nobody says who", code)
    await broker.ask("who is asked", 34, body=heartbeat("c1"), client="one")
    asked = await broker.send("what it is doing", 307, {**CONSUMER, "jstackEnable": "true"}, client="two")
    said = RemotingCommand(0, opaque=1_000_000_002, flag=FLAG_RESPONSE, body=b'{"mqTable":{{"queueId":0}:{}}}')
    await broker.feed("it says", encode_command(said), client="one")
    await broker.answer(asked, "two")
    await broker.ask("a message", 310, send_ext("T1"), b"hello")
    ids = {"msgId": "0A00000100002A9F0000000000000009"}
    await broker.ask("no message", 309, {**CONSUMER, **ids})
    await broker.ask("no id", 309, {**CONSUMER, "msgId": "K1"})


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    for code in (307, 309):
        await broker.ask("another one leads", code, {**CONSUMER, "msgId": "K1", "noForward": "true"})
