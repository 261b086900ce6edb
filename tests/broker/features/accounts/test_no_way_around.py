"""Requests of every code, signed, unsigned and mangled: an account without the right gets and changes nothing."""

import asyncio
from typing import Final

import pytest
from guarded_broker import KEYS, PRODUCING, account, allow, call, credentials, make_account
from hypothesis import given, settings
from hypothesis import strategies as st
from served_broker import FakeClient, ServedBroker

from dledger_broker.features.accounts.judge import BURST, PER_S
from dledger_broker.kernel.rights import ADMIN, Demand
from dledger_broker.testing.broker import guard
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.hosts import HostAddress
from dledger_remoting.signatures import Credentials, signed
from tests.broker.requests.test_refusals import ANSWERS, BODIES, NAMES, REQUESTS, VALUES, answered, read_log, served

FOR_EVERY_ACCOUNT: Final = {
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.HEART_BEAT,  # if its client consumes nothing
    RequestCode.UNREGISTER_CLIENT,  # if it names no group
    RequestCode.RELEASE_LOCKS,  # if it names no group
    RequestCode.BATCH_ACK_MESSAGE,  # if it names nothing
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,  # if it names nothing
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST,  # if it names nothing
}


def guarded() -> ServedBroker:
    """Return the broker of the tests of refusals, which has everything, with access control."""
    broker = served()
    guard(broker.service, broker.memory.machine, KEYS, broker.memory.env)
    return broker


def with_accounts() -> ServedBroker:
    broker = guarded()
    make_account(broker, "app")
    make_account(broker, "admin", "Super")
    return broker


GUARDED: Final = with_accounts()
"""Broker in which no test changes anything."""


def mangled(data: st.DataObject, request_name: str) -> tuple[int, dict[str, str], bytes]:
    code, fields = REQUESTS[request_name]
    ext = dict(fields)
    names = st.sampled_from(sorted(ext))
    for name in data.draw(st.lists(names, max_size=1), "taken out"):
        del ext[name]
    ext |= data.draw(st.dictionaries(st.one_of(names, st.sampled_from(NAMES)), VALUES, max_size=3), "put in")
    return code, ext, data.draw(BODIES, "body")


def ask(client: FakeClient, code: int, ext: dict[str, str], body: bytes, serialize_type: int) -> RemotingCommand:
    if code in {RequestCode.RECALL_MESSAGE, RequestCode.LIST_DELAYED}:
        read_log(client.broker)
    return asyncio.run(answered(client, code, ext, body, serialize_type))


def ask_as(broker: ServedBroker, who: Credentials, code: int, ext: dict[str, str]) -> RemotingCommand:
    """Return the answer to a request that an account signs, from a client of its own."""
    return ask(broker.client(f"client/{code}"), code, signed(ext, b"", who), b"", 0)


def effects(broker: ServedBroker) -> tuple[int, int]:
    """Return values that differ once a request has changed anything."""
    return broker.memory.machine.digest(), broker.memory.log.end


@pytest.mark.parametrize("request_name", REQUESTS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_a_request_with_a_missing_or_wrong_signature_is_refused_without_effect(
    request_name: str, data: st.DataObject
) -> None:
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
    broker, client = GUARDED, GUARDED.client()
    client.is_trusted = True  # so that it is not slowed down
    before = effects(broker)
    answer = ask(client, code, ext, body, data.draw(st.sampled_from([0, 1])))
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
    assert effects(broker) == before


@pytest.mark.parametrize("request_name", REQUESTS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_an_account_without_rights_gets_nothing_and_changes_nothing(request_name: str, data: st.DataObject) -> None:
    broker, who = GUARDED, credentials("app")
    code, ext, body = mangled(data, request_name)
    before = effects(broker)
    answer = ask(broker.client(), code, signed(ext, body, who), body, data.draw(st.sampled_from([0, 1])))
    if code not in FOR_EVERY_ACCOUNT:
        assert answer.code not in ANSWERS
    assert answer.body == b"" or code in FOR_EVERY_ACCOUNT
    assert effects(broker) == before


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_request_needs_each_right_that_its_route_demands_and_no_other(request_name: str) -> None:
    code, ext = REQUESTS[request_name]
    broker = guarded()
    who = make_account(broker, "app")
    route = broker.service.requests.route(code)
    for demand in demands_of(broker, code, ext):
        for action in demand.actions[:1]:
            assert ask_as(broker, who, code, ext).code != 0
            allow(broker, "app", f"{demand.kind}:{demand.name or '*'}", action)
    answer = ask_as(broker, who, code, ext)
    is_refused = "has no permission to access" in (answer.remark or "")
    assert is_refused == (route.rights is ADMIN), answer.remark


def demands_of(broker: ServedBroker, code: int, ext: dict[str, str]) -> list[Demand]:
    """Return what a request demands, with what its handler finds by itself: everything in these tests is in T1."""
    request = RemotingCommand(code, ext=dict(ext))
    found: list[Demand] = []
    for right in broker.service.requests.route(code).rights:
        if right.names is None:
            found.append(Demand(right.actions, right.kind, "T1"))
            continue
        try:
            found += [demand.judged for demand in right.demands(request)]  # type: ignore[arg-type]
        except RemotingError:
            continue  # the names stand in its body, which is empty here
    return found


def test_viewing_a_message_needs_a_right_on_the_topic_of_the_message() -> None:
    broker = guarded()
    who = account(broker, "app", "Topic:T2 Sub Get")
    _, sent_back = REQUESTS[str(int(RequestCode.CONSUMER_SEND_MSG_BACK))]
    ext = {"offset": sent_back["offset"], "topic": "T2"}
    assert ask_as(broker, who, 33, ext).code == ResponseCode.NO_PERMISSION
    allow(broker, "app", "Topic:T1", "Sub")
    assert ask_as(broker, who, 33, ext).code == 0


@pytest.mark.parametrize("wish", ["8", "12"])
def test_ending_a_transaction_needs_a_right_on_the_topic_of_the_half(wish: str) -> None:
    broker = guarded()
    who = account(broker, "app", "Topic:T2 Pub")
    _, ext = REQUESTS[str(int(RequestCode.END_TRANSACTION))]
    ext = {**ext, "topic": "T2", "commitOrRollback": wish}
    before = broker.memory.machine.digest()
    assert ask_as(broker, who, 37, ext).code == ResponseCode.NO_PERMISSION
    assert broker.memory.machine.digest() == before
    allow(broker, "app", "Topic:T1", "Pub")
    assert ask_as(broker, who, 37, ext).code == 0


def test_a_transaction_check_goes_only_to_producers_that_may_send_to_its_topic() -> None:
    broker = guarded()
    thief, client = account(broker, "thief"), broker.client("thief/1")
    assert call(client, thief, 34, {}, PRODUCING).code == 0
    told: list[object] = []

    def check() -> None:
        broker.service.relay.call_producer("PG", 39, {"topic": "T1"}, b"the message", 0.0, told.append)
        broker.settle()

    check()
    assert (len(told), client.pushed) == (1, [])
    allow(broker, "thief", "Topic:T1", "Pub")
    check()
    assert [code for code, _ in client.pushed] == [39]


def test_two_accounts_can_use_one_client_id_without_affecting_each_other() -> None:
    """The first account keeps no other account out, a later account takes nothing away, and 38 lists an id once."""
    broker = guarded()
    first, second = account(broker, "first"), account(broker, "second", "Group:CG Sub", "Topic:T1 Sub")
    index = broker.service.gossip.local.index
    consuming = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"CG","subscriptionDataSet":[{"topic":"T1"}]}],'
        b'"producerDataSet":[{"groupName":"PG"}]}'
    )
    assert call(broker.client("first/1"), first, 34, {}, PRODUCING).code == 0
    owner = broker.client("second/1")
    assert call(owner, second, 34, {}, consuming).code == 0
    assert len(set(index.producers("PG"))) == 2
    assert b'"c"' in call(owner, second, 38, {"consumerGroup": "CG"}).body
    assert call(broker.client("first/1"), first, 35, {"clientID": "c", "producerGroup": "PG"}, b"").code == 0
    assert len(set(index.producers("PG"))) == 1
    assert call(owner, second, 34, {}, consuming).code == 0
    assert call(owner, second, 35, {"clientID": "c", "producerGroup": "PG", "consumerGroup": "CG"}, b"").code == 0
    assert not index.rows
    masked = b'{"clientID":"c\\u0000second","producerDataSet":[{"groupName":"PG"}]}'
    assert "NUL" in (call(broker.client("first/1"), first, 34, {}, masked).remark or "")


def test_wrong_signatures_slow_down_an_account_only_at_their_address() -> None:
    broker = guarded()
    owner = make_account(broker, "owner")
    guess = Credentials("owner", "a guess at a secret")
    proven, stranger = broker.client("owner/1"), broker.client("stranger/1")
    elsewhere = broker.client("owner/2")
    elsewhere.address = HostAddress("10.0.0.77", 1)
    assert call(proven, owner, 34, {}, PRODUCING).code == 0
    codes = [call(stranger, guess, 34, {}, PRODUCING).code for _ in range(BURST + 3)]
    assert codes == [ResponseCode.NO_PERMISSION] * BURST + [ResponseCode.SYSTEM_BUSY] * 3
    assert call(broker.client("owner/3"), owner, 34, {}, PRODUCING).code == ResponseCode.SYSTEM_BUSY
    for client in (proven, elsewhere):
        assert call(client, owner, 34, {}, PRODUCING).code == 0
    broker.advance(2 / PER_S)
    assert call(broker.client("owner/3"), owner, 34, {}, PRODUCING).code == 0
