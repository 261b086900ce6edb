"""Requests of every code, signed, unsigned and mangled: who lacks a right gets nothing and changes nothing."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from guarded_broker import KEYS, allow, call, credentials, make_account
from hypothesis import given, settings
from hypothesis import strategies as st
from served_broker import FakeClient, ServedBroker

from dledger_broker.kernel.rights import ADMIN, Demand
from dledger_broker.testing.access import guard
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.signatures import signed
from tests.broker.requests.test_refusals import ANSWERS, BODIES, NAMES, REQUESTS, VALUES, answered, read_log, served

FOR_EVERY_ACCOUNT: Final = {
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.HEART_BEAT,  # of a client that consumes nothing
    RequestCode.UNREGISTER_CLIENT,  # which names no group
    RequestCode.RELEASE_LOCKS,  # which names no group
    RequestCode.BATCH_ACK_MESSAGE,  # of nothing
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,  # of nothing
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST,  # of nothing
}


def guarded() -> ServedBroker:
    """The broker of the tests of refusals, which has everything, with access control."""
    broker = served()
    guard(broker.service, broker.memory.machine, KEYS)
    return broker


def with_accounts() -> ServedBroker:
    broker = guarded()
    make_account(broker, "app")
    make_account(broker, "admin", "Super")
    return broker


GUARDED: Final = with_accounts()
"""Nobody changes anything in it."""


def mangled(data: st.DataObject, request_name: str) -> tuple[int, dict[str, str], bytes]:
    code, fields = REQUESTS[request_name]
    ext = dict(fields)
    names = st.sampled_from(sorted(ext))
    for name in data.draw(st.lists(names, max_size=1), "taken out"):
        del ext[name]
    ext |= data.draw(st.dictionaries(st.one_of(names, st.sampled_from(NAMES)), VALUES, max_size=3), "put in")
    return code, ext, data.draw(BODIES, "body")


def ask(client: FakeClient, code: int, ext: dict[str, str], body: bytes, serialize_type: int) -> RemotingCommand:
    if code == RequestCode.RECALL_MESSAGE:
        read_log(client.broker)
    return asyncio.run(answered(client, code, ext, body, serialize_type))


@pytest.mark.parametrize("request_name", REQUESTS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_who_signs_nothing_or_badly_is_refused(request_name: str, data: st.DataObject) -> None:
    who = credentials("admin")
    code, ext, body = mangled(data, request_name)
    match data.draw(st.sampled_from(["nothing", "no signature", "another secret", "another body", "unknown"])):
        case "no signature":
            ext = {**ext, "AccessKey": "admin"}
        case "another secret":
            ext = {**signed(ext, body, who), "Signature": signed(ext, body, credentials("other"))["Signature"]}
        case "another body":
            ext = signed(ext, body + b"x", who)
        case "unknown":
            ext = signed(ext, body, credentials("nobody"))
    broker = GUARDED
    before = (broker.memory.machine.digest(), broker.memory.log.end)
    answer = ask(broker.client(), code, ext, body, data.draw(st.sampled_from([0, 1])))
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
    assert (broker.memory.machine.digest(), broker.memory.log.end) == before


@pytest.mark.parametrize("request_name", REQUESTS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_an_account_without_rights_gets_nothing_and_changes_nothing(request_name: str, data: st.DataObject) -> None:
    broker, who = GUARDED, credentials("app")
    code, ext, body = mangled(data, request_name)
    before = (broker.memory.machine.digest(), broker.memory.log.end)
    answer = ask(broker.client(), code, signed(ext, body, who), body, data.draw(st.sampled_from([0, 1])))
    if code not in FOR_EVERY_ACCOUNT:
        assert answer.code not in ANSWERS
    assert answer.body == b"" or code in FOR_EVERY_ACCOUNT
    assert (broker.memory.machine.digest(), broker.memory.log.end) == before


@pytest.mark.parametrize("request_name", REQUESTS)
def test_each_right_that_a_request_asks_for_is_needed_and_all_are_enough(request_name: str) -> None:
    code, ext = REQUESTS[request_name]
    broker = guarded()
    who = make_account(broker, "app")
    route = broker.service.requests.route(code)
    for demand in demands_of(broker, code, ext):
        for action in demand.actions[:1]:
            assert call_from_disk(broker, who.access_key, code, ext).code != 0
            allow(broker, "app", f"{demand.kind}:{demand.name or '*'}", action)
    answer = call_from_disk(broker, who.access_key, code, ext)
    is_refused = "has no permission to access" in (answer.remark or "")
    assert is_refused == (route.rights is ADMIN), answer.remark


def demands_of(broker: ServedBroker, code: int, ext: dict[str, str]) -> list[Demand]:
    """What a request asks for, with what its handler finds by itself: everything in these tests is in T1."""
    request = RemotingCommand(code, ext=dict(ext))
    found: list[Demand] = []
    for right in broker.service.requests.route(code).rights:
        if right.names is None:
            found.append(Demand(right.actions, right.kind, "T1"))
            continue
        try:
            found += [demand.judged for demand in right.demands(request)]  # type: ignore[arg-type]
        except RemotingError:
            continue  # its body, which is empty here, names them
    return found


def call_from_disk(broker: ServedBroker, name: str, code: int, ext: dict[str, str]) -> RemotingCommand:
    client = broker.client(f"client/{code}")
    return ask(client, code, signed(ext, b"", credentials(name)), b"", 0)


def test_a_message_is_seen_with_a_right_on_its_own_topic_whatever_the_request_names() -> None:
    broker = guarded()
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T2", "Sub", "Get")
    _, sent_back = REQUESTS[str(int(RequestCode.CONSUMER_SEND_MSG_BACK))]
    ext = {"offset": sent_back["offset"]}
    assert ask(broker.client(), 33, signed({**ext, "topic": "T2"}, b"", who), b"", 0).code == ResponseCode.NO_PERMISSION
    allow(broker, "app", "Topic:T1", "Sub")
    assert ask(broker.client(), 33, signed({**ext, "topic": "T2"}, b"", who), b"", 0).code == 0


@pytest.mark.parametrize("wish", ["8", "12"])
def test_a_transaction_is_ended_with_a_right_on_its_own_topic_whatever_the_request_names(wish: str) -> None:
    broker = guarded()
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T2", "Pub")
    _, ext = REQUESTS[str(int(RequestCode.END_TRANSACTION))]
    ext = {**ext, "topic": "T2", "commitOrRollback": wish}
    before = broker.memory.machine.digest()
    assert ask(broker.client(), 37, signed(ext, b"", who), b"", 0).code == ResponseCode.NO_PERMISSION
    assert broker.memory.machine.digest() == before
    allow(broker, "app", "Topic:T1", "Pub")
    assert ask(broker.client(), 37, signed(ext, b"", who), b"", 0).code == 0


def test_a_check_of_a_transaction_goes_to_who_may_send_to_its_topic() -> None:
    broker = guarded()
    thief, client = make_account(broker, "thief"), broker.client("thief/1")
    body = b'{"clientID":"t","producerDataSet":[{"groupName":"PG"}]}'
    assert call(client, thief, 34, {}, body).code == 0
    told: list[object] = []
    relay = broker.service.relay
    relay.call_producer("PG", 39, {"topic": "T1"}, b"the message", 0.0, told.append)
    broker.settle()
    assert (len(told), client.pushed) == (1, [])
    allow(broker, "thief", "Topic:T1", "Pub")
    relay.call_producer("PG", 39, {"topic": "T1"}, b"the message", 0.0, told.append)
    broker.settle()
    assert [code for code, _ in client.pushed] == [39]


def test_the_client_id_of_another_account_cannot_be_taken() -> None:
    broker = guarded()
    owner, thief = make_account(broker, "owner"), make_account(broker, "thief")
    body = b'{"clientID":"c","producerDataSet":[{"groupName":"PG"}]}'
    assert call(broker.client("owner/1"), owner, 34, {}, body).code == 0
    for code, ext, taken in ((34, {}, body), (35, {"clientID": "c", "producerGroup": "PG"}, b"")):
        answer = call(broker.client("thief/1"), thief, code, ext, taken)
        assert (answer.code, "another account" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
    assert list(broker.service.gossip.local.index.producers("PG")) == ["c"]
