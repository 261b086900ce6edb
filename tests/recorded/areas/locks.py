"""Queue locks: request, renewal, takeover, release."""

from tests.broker.features.locks.lock_bodies import lock_body
from tests.recorded.conversation import Broker, Record

MEMBER = {"clientID": "anna", "consumerGroup": "CG"}


async def talk(record: Record) -> None:
    await owned(record.broker("locks", group="CG"))
    strict = {"max_locks_per_group": 2, "auto_create_group": False}
    await refused(record.broker("locks that are refused", group="CG", **strict))
    await not_yet(record.broker("locks before they are active"))
    await elsewhere(record.broker("locks at a node that does not lead"))
    await first_of_its_group(record.broker("a lock that makes its group"))


async def owned(broker: Broker) -> None:
    await broker.ask("two queues", 41, body=lock_body("anna", ("T1", 1), ("T1", 0)))
    await broker.ask("one of them, and another", 41, body=lock_body("bert", ("T1", 1), ("T1", 2)))
    await broker.ask("a renewal, in binary", 41, body=lock_body("anna", ("T1", 0)), serialize_type=1)
    await broker.ask("one is given up", 42, body=lock_body("anna", ("T1", 1)))
    await broker.ask("it again", 42, body=lock_body("anna", ("T1", 1)), serialize_type=1)
    await broker.ask("the next", 41, body=lock_body("bert", ("T1", 1)))
    await broker.ask("a member gives up all", 20016, MEMBER)
    await broker.ask("the next", 41, body=lock_body("bert", ("T1", 0)))
    await broker.ask("nothing", 41, body=lock_body("bert"))
    await broker.send("one is given up without an answer", 42, body=lock_body("bert", ("T1", 0)), oneway=True)


async def refused(broker: Broker) -> None:
    await broker.ask("no body", 41)
    await broker.ask("no client", 41, body=b'{"consumerGroup":"CG","clientId":""}')
    await broker.ask("a group that is not there", 41, body=lock_body("anna", ("T1", 0), group="absent"))
    await broker.ask("too many at once", 41, body=lock_body("anna", *(("T1", number) for number in range(3))))
    await broker.ask("as many as the group may have", 41, body=lock_body("anna", ("T1", 0), ("T1", 1)))
    await broker.ask("one more", 41, body=lock_body("anna", ("T1", 2)))
    await broker.ask("a queue that cannot be", 42, body=lock_body("anna", ("T1", -1)))
    await broker.ask("no client gives up all", 20016)


async def not_yet(broker: Broker) -> None:
    del broker.memory.machine.state.activation.since["locks"]
    await broker.ask("a queue", 41, body=lock_body("anna", ("T1", 0)))
    await broker.ask("one is given up", 42, body=lock_body("anna", ("T1", 0)), serialize_type=1)


async def elsewhere(broker: Broker) -> None:
    await broker.follow()
    none = {"noForward": "true"}
    for code in (41, 42):
        await broker.ask("one", code, none, lock_body("anna", ("T1", 0)))
    await broker.ask("a member gives up all", 20016, {**MEMBER, **none})
    await broker.ask("one, and the leader cannot be reached", 41, body=lock_body("anna", ("T1", 0)))


async def first_of_its_group(broker: Broker) -> None:
    await broker.ask("a group that is not there", 41, body=lock_body("anna", ("T1", 0), group="absent"))
