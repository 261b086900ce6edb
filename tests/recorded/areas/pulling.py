"""Pulls: stored messages, long polls, refusals, and the record of pulling clients."""

from dledger_remoting.bodies import encode_body
from dledger_remoting.heartbeat import (
    ClientConfigCheck,
    ConsumerData,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
    encode_heartbeat,
)
from tests.recorded.areas.sending import TWO_KEYS, send_ext
from tests.recorded.conversation import Broker, Record

SUSPEND = {"sysFlag": "6", "suspendTimeoutMillis": "1000"}


def pull_ext(topic: str, offset: int = 0, **fields: str) -> dict[str, str]:
    """Return the fields of 11 and 361, including the subscription."""
    ids = {"consumerGroup": "CG", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32"}
    flags = {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    return {**ids, **flags, **fields}


async def talk(record: Record) -> None:
    await found(record.broker("pulls that find something"))
    await nothing(record.broker("pulls that find nothing"))
    await waiting(record.broker("pulls that wait", max_held_pulls=2))
    await refused(record.broker("pulls that are refused", property_filter=False))
    await subscriptions(record.broker("pulls that come without a subscription", property_filter=False))
    closed = record.broker("a broker that makes no groups", auto_create_group=False)
    closed.create_topic("T1")
    await closed.ask("no such group", 11, pull_ext("T1"))
    await closed.ask("a group that belongs to the system", 11, pull_ext("T1", consumerGroup="TOOLS_CONSUMER"))
    await elsewhere(record.broker("pulls from a node that does not lead"))
    await readers(record.broker("readers of queues"))
    await in_sql(record.broker("pulls that filter by properties"))


async def filled(broker: Broker) -> None:
    """Store four messages in queue 0 of T1."""
    broker.create_topic("T1")
    await broker.ask("a message", 310, send_ext("T1"), b"hello")
    await broker.ask("a batch", 320, send_ext("T1", m="true"), TWO_KEYS)
    await broker.ask("a message with another tag", 310, send_ext("T1", properties="TAGS\x01b\x02"), b"world")


async def found(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("all", 11, pull_ext("T1"))
    await broker.ask("all, in binary", 11, pull_ext("T1"), serialize_type=1)
    await broker.ask("all, by a lite pull", 361, pull_ext("T1"))
    await broker.ask("all, by a lite pull in binary", 361, pull_ext("T1"), serialize_type=1)
    await broker.ask("from the second on", 11, pull_ext("T1", 1))
    await broker.ask("two of them", 11, pull_ext("T1", maxMsgNums="2"))
    await broker.ask("no more than a few bytes", 361, pull_ext("T1", maxMsgBytes="200"))
    await broker.ask("with a tag", 11, pull_ext("T1", subscription="b", expressionType="TAG"))
    await broker.ask("with one of several tags", 361, pull_ext("T1", subscription="a || c"))
    await broker.ask("from a leader only", 11, pull_ext("T1", roles="leader,learner"))
    await broker.ask("from a node that knows of so much", 361, pull_ext("T1", minCommit="100"))
    await broker.ask("with a commit", 11, pull_ext("T1", sysFlag="5", commitOffset="3"))
    await broker.ask("what was committed", 14, {"consumerGroup": "CG", "topic": "T1", "queueId": "0"})
    await broker.send("one that is not answered", 11, pull_ext("T1"), oneway=True)
    await broker.send("one that is not answered", 361, pull_ext("T1"), oneway=True)
    broker.memory.node.cold = True
    await broker.ask("what is not in memory", 11, pull_ext("T1"))
    await broker.ask("what is not in memory, with a tag", 361, pull_ext("T1", subscription="b"))


async def nothing(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("at the end", 11, pull_ext("T1", 4))
    await broker.ask("at the end", 361, pull_ext("T1", 4), serialize_type=1)
    await broker.ask("behind the end", 11, pull_ext("T1", 5))
    await broker.ask("far behind the end", 361, pull_ext("T1", 1 << 40))
    await broker.ask("before the beginning", 11, pull_ext("T1", -1))
    await broker.ask("an empty queue", 11, pull_ext("T1", queueId="1"))
    await broker.ask("far behind the end of an empty queue", 11, pull_ext("T1", 7, queueId="1"))
    await broker.ask("a tag that no message has", 11, pull_ext("T1", subscription="c"))
    await broker.ask("no messages wanted", 11, pull_ext("T1", maxMsgNums="0"))


async def waiting(broker: Broker) -> None:
    await filled(broker)
    first = await broker.send("one waits", 11, pull_ext("T1", 4, **SUSPEND))
    second = await broker.send(
        "another one waits, for a tag", 361, pull_ext("T1", 4, **SUSPEND, subscription="b"), serialize_type=1
    )
    await broker.ask("more than may wait", 11, pull_ext("T1", 4, **SUSPEND))
    await broker.ask("a message comes", 310, send_ext("T1"), b"hello", client="producer")
    await broker.answer(first)
    await broker.answer(second)
    await broker.ask("nothing comes in time", 11, pull_ext("T1", 5, **SUSPEND))
    await broker.send("one that is not answered", 11, pull_ext("T1", 5, **SUSPEND), oneway=True)
    deleted = await broker.send("its topic is deleted", 11, pull_ext("T1", 5, **SUSPEND))
    await broker.ask("its topic is deleted", 215, {"topic": "T1"}, client="producer")
    await broker.answer(deleted)
    broker.create_topic("T2")
    deposed = await broker.send("its node stops leading", 11, pull_ext("T2", **SUSPEND))
    await broker.step_down()
    await broker.answer(deposed)


async def refused(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("no such topic", 11, pull_ext("T9"))
    await broker.ask("no such topic", 361, pull_ext("T9"))
    await broker.ask("no such queue", 11, pull_ext("T1", queueId="4"))
    await broker.ask("no such queue", 361, pull_ext("T1", queueId="-1"))
    await broker.ask("a queue that is no number", 11, pull_ext("T1", queueId="one"))
    await broker.ask("no queue at all", 361, {"consumerGroup": "CG", "topic": "T1"})
    await broker.ask("a name that is none", 11, pull_ext("T1", consumerGroup="C G"))
    await broker.ask("a filter that is a class", 11, pull_ext("T1", sysFlag="12"))
    await broker.ask("a filter in SQL", 11, pull_ext("T1", expressionType="SQL92", subscription="a > 1"))
    await broker.ask("from followers only", 11, pull_ext("T1", roles="follower"))
    await broker.ask("from a role that is none", 361, pull_ext("T1", roles="king"))
    await broker.ask("from a node that knows of more", 361, pull_ext("T1", minCommit=str(1 << 40)))
    await broker.ask("the group may not consume", 200, body=b'{"groupName":"CG","consumeEnable":false}')
    await broker.ask("the group may not consume", 11, pull_ext("T1"))
    header = {"topic": "T1", "defaultTopic": "", "readQueueNums": "4", "writeQueueNums": "4", "perm": "2"}
    await broker.ask("T1 is made to be written only", 17, {**header, "topicFilterType": "SINGLE_TAG"})
    await broker.ask("a topic that is not read", 11, pull_ext("T1", consumerGroup="CG2"))


async def in_sql(broker: Broker) -> None:
    await filled(broker)
    sql = {"expressionType": "SQL92", "subscription": "TAGS = 'b'"}
    await broker.ask("what matches", 11, pull_ext("T1", **sql))
    await broker.ask("what matches", 361, pull_ext("T1", **sql), serialize_type=1)
    await broker.ask("nothing matches", 11, pull_ext("T1", **{**sql, "subscription": "TAGS IN ('c')"}))
    await broker.ask("an expression with a fault", 11, pull_ext("T1", **{**sql, "subscription": "TAGS LIKE 'b'"}))
    for expression in ("TAGS = 'b'", "TAGS ="):
        subscription = SubscriptionData("T1", expression, expression_type="SQL92")
        await broker.ask("a client's configuration", 46, body=encode_body(ClientConfigCheck("c1", "CG", subscription)))
    await broker.ask("a configuration that is none", 46, body=b"[")


async def subscriptions(broker: Broker) -> None:
    await filled(broker)
    bare = {"sysFlag": "0", "subscription": ""}
    await broker.ask("a group that is not online", 11, pull_ext("T1", **bare))
    await heartbeat(broker, "it comes online", SubscriptionData("T1", "b", sub_version=5))
    await broker.ask("by its tag", 11, pull_ext("T1", **bare))
    await broker.ask("a newer subscription", 361, pull_ext("T1", **bare, subVersion="6"))
    await broker.ask("a topic that it does not subscribe to", 11, pull_ext("TBW102", **bare))
    await heartbeat(
        broker, "it filters in SQL", SubscriptionData("T1", "a > 1", sub_version=7, expression_type="SQL92")
    )
    await broker.ask("in SQL", 11, pull_ext("T1", **bare))
    await broker.ask("it may not broadcast", 200, body=b'{"groupName":"CG","consumeBroadcastEnable":false}')
    consumer = ConsumerData(
        "CG", message_model=MessageModel.BROADCASTING, subscription_data_set=[SubscriptionData("T1")]
    )
    await broker.ask("it broadcasts", 34, body=encode_heartbeat(HeartbeatData("c1", consumer_data_set=[consumer])))
    await broker.ask("it may not", 11, pull_ext("T1", **bare))


async def heartbeat(broker: Broker, what: str, subscription: SubscriptionData) -> None:
    consumer = ConsumerData("CG", subscription_data_set=[subscription])
    await broker.ask(what, 34, body=encode_heartbeat(HeartbeatData("c1", consumer_data_set=[consumer])))


async def elsewhere(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("its group is made", 11, pull_ext("T1"))
    await broker.follow()
    await broker.ask("what is here", 11, pull_ext("T1"))
    await broker.ask("what is here", 361, pull_ext("T1"), serialize_type=1)
    await broker.ask("only from a leader", 361, pull_ext("T1", roles="leader"))
    await broker.ask("at the end", 11, pull_ext("T1", 4))
    await broker.ask("far behind the end", 11, pull_ext("T1", 9))
    await broker.ask("far behind the end, and the client would rather know", 361, pull_ext("T1", 9, noForward="true"))
    await broker.ask("far behind the end, of what this node knows", 361, pull_ext("T1", 9, minCommit="0"))
    await broker.ask("no such topic", 11, pull_ext("T9"))
    await broker.ask("no such group", 11, pull_ext("T1", consumerGroup="CG9", noForward="true"))
    waits = await broker.send("one waits", 11, pull_ext("T1", 4, **SUSPEND))
    await broker.answer(waits)


async def readers(broker: Broker) -> None:
    await filled(broker)
    await broker.ask("nobody", 20004, {"consumerGroup": "CG"})
    await broker.ask("no group at all", 20004)
    await heartbeat(broker, "a client says who it is", SubscriptionData("T1"))
    await broker.ask("it pulls", 11, pull_ext("T1"))
    await broker.pass_time(0.5)
    await broker.ask("another one pulls", 361, pull_ext("T1", queueId="2"), client="other")
    await broker.ask("two", 20004, {"consumerGroup": "CG"})
    await broker.ask("two, in binary", 20004, {"consumerGroup": "CG"}, serialize_type=1)
    await broker.follow()
    await broker.ask("two, from a node that does not lead", 20004, {"consumerGroup": "CG"})
