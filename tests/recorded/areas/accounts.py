"""Accounts and their rules, with access control off and on: create, change, read, delete, and refused requests."""

import json

from dledger_broker.features.accounts.sealing import read_key_file
from dledger_remoting.accounts import ROOT
from dledger_remoting.signatures import Credentials, signed
from tests.access_keys import KEY_FILE
from tests.recorded.conversation import Broker, Record

ROOT_CREDENTIALS = Credentials(ROOT, read_key_file(KEY_FILE).root_secrets[0])
APP = Credentials("app", "secret-of-app")
USER = {"username": "app"}
SUBJECT = {"subject": "User:app"}
SEND = {"a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": ""}


async def talk(record: Record) -> None:
    await off(record.broker("accounts where access control is off"))
    guarded = record.broker("accounts", access_key_file=KEY_FILE)
    guarded.create_topic("T1")
    await made_and_changed(guarded)
    await refused(record.broker("accounts that are refused", access_key_file=KEY_FILE))
    await plain(record.broker("accounts of RocketMQ 4", access_key_file=KEY_FILE))


async def off(broker: Broker) -> None:
    for code in range(3001, 3011):
        await broker.ask("a request", code, USER | SUBJECT)


async def ask(
    broker: Broker, what: str, code: int, ext: dict[str, str], body: object = None, who: Credentials = ROOT_CREDENTIALS
) -> None:
    text = b"" if body is None else json.dumps(body).encode()
    await broker.ask(what, code, signed(ext, text, who), text)


def acl(resource: str, *actions: str, policy_type: str = "Custom", decision: str = "Allow") -> dict[str, object]:
    entry = {"resource": resource, "actions": list(actions), "sourceIps": ["10.0.0.0/8"], "decision": decision}
    return {**SUBJECT, "policies": [{"policyType": policy_type, "entries": [entry]}]}


async def made_and_changed(broker: Broker) -> None:
    await ask(broker, "an account", 3001, USER, {"username": "app", "password": APP.secret, "userType": "Normal"})
    await ask(broker, "the same again", 3001, USER, {"password": "x"})
    await ask(broker, "it has no right", 310, SEND, who=APP)
    await ask(broker, "a rule", 3006, SUBJECT, acl("Topic:T1", "Pub", "Sub"))
    await ask(broker, "another rule", 3007, SUBJECT, acl("Group:*", "Sub", policy_type="Default"))
    await ask(broker, "it has a right", 310, SEND, who=APP)
    await ask(broker, "its rules", 3009, SUBJECT)
    await ask(broker, "all rules on topics", 3010, {"subjectFilter": "app", "resourceFilter": "Topic"})
    await ask(broker, "one rule goes", 3008, SUBJECT | {"policyType": "Custom", "resource": "Topic:T1"})
    await ask(broker, "another status", 3002, USER, {"userStatus": "disable"})
    await ask(broker, "it is disabled", 310, SEND, who=APP)
    await ask(broker, "the account is told", 3004, USER)
    await ask(broker, "all are told", 3005, {"filter": "a"})
    await ask(broker, "all rules go", 3008, SUBJECT)
    await ask(broker, "there are none", 3008, SUBJECT)
    await ask(broker, "none are told", 3009, SUBJECT)
    await ask(broker, "the account goes", 3003, USER)
    await ask(broker, "it is not told", 3004, USER)


async def refused(broker: Broker) -> None:
    await broker.ask("who names no account", 3005)
    await ask(broker, "who is not known", 3005, {}, who=APP)
    await ask(broker, "another secret", 3005, {}, who=Credentials(ROOT, "x"))
    await ask(broker, "no secret", 3001, USER, {"username": "app"})
    await ask(broker, "no name", 3001, {"username": " "}, {"password": "x"})
    await ask(broker, "the name of the root account", 3001, {"username": ROOT}, {"password": "x"})
    await ask(broker, "another type", 3001, USER, {"password": "x", "userType": "King"})
    await ask(broker, "a subject that is not there", 3006, SUBJECT, acl("Topic:T1", "Pub"))
    await ask(broker, "no subject", 3006, {"subject": "app"}, acl("Topic:T1", "Pub"))
    await ask(broker, "no policies", 3006, SUBJECT, {})
    await ask(broker, "no entries", 3006, SUBJECT, {"policies": [{}]})
    await ask(broker, "another action", 3006, SUBJECT, acl("Topic:T1", "Fly"))
    await ask(broker, "another resource", 3006, SUBJECT, acl("Queue:T1", "Pub"))
    await ask(broker, "another decision", 3006, SUBJECT, acl("Topic:T1", "Pub", decision="Perhaps"))


async def plain(broker: Broker) -> None:
    account = {"accessKey": "app", "admin": "false"}
    perms = {"topicPerms": "T1=PUB,T2=DENY", "groupPerms": "G=SUB", "defaultTopicPerm": "SUB"}
    await broker.ask("who names no account", 50, account)
    await ask(broker, "an account without a secret", 50, account)
    await ask(broker, "an account", 50, account | perms | {"secretKey": APP.secret, "whiteRemoteAddress": "10.1.0.*"})
    await ask(broker, "addresses that need no account", 53, {"globalWhiteAddrs": "10.2.0.1,10.2.0.{2,3}"})
    await ask(broker, "no addresses", 53, {"globalWhiteAddrs": "nowhere"})
    await ask(broker, "its version", 52, {})
    await ask(broker, "all accounts", 54, {})
    await ask(broker, "its rules", 3009, SUBJECT)
    await ask(broker, "another permission", 50, account | {"topicPerms": "T1=FLY"})
    await ask(broker, "the account goes", 51, {"accessKey": "app"})
    await ask(broker, "no name", 51, {"accessKey": ""})
