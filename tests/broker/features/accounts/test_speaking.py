"""A proxy speaks for its clients: requests of every code are judged by the client's account and address."""

import json
import logging
import time
from dataclasses import replace

import msgspec
import pytest
from guarded_broker import (
    CONFIG,
    CREATE_ACL,
    KEYS,
    PRODUCING,
    ROOT_CREDENTIALS,
    UPDATE_USER,
    account,
    allow,
    as_root,
    call,
    credentials,
    guarded_broker,
    make_account,
    only_frame,
)
from served_broker import FakeClient, ServedBroker, make_served_broker, pull_ext, send_ext
from test_no_way_around import FOR_EVERY_ACCOUNT, ask, demands_of, effects, guarded

from dledger_broker.errors import ConfigError
from dledger_broker.features.accounts.judge import BURST
from dledger_broker.features.accounts.table import ACCOUNTS
from dledger_broker.frontend.forwarding import Envelope, ForwardedOrigin, _principal_to_send
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.requests import Principal
from dledger_broker.kernel.rights import ADMIN, ResourceKind
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_json_header
from dledger_remoting.frame import Frame
from dledger_remoting.headers_pop import LEASE_FIELD
from dledger_remoting.hosts import HostAddress
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.speech import Speech, format_date, parse_authorization, sign_text
from tests.broker.features.pop.pop_calls import pop_ext, with_revivals
from tests.broker.features.pop.pop_calls import wait as let_pass
from tests.broker.requests.test_refusals import ANSWERS, REQUESTS

CLIENT = HostAddress("192.0.2.7", 5_000)
SPEAK = "Cluster:* Speak"
REFUSED = ResponseCode.NO_PERMISSION


def with_proxy(broker: ServedBroker, *rights: str) -> Credentials:
    """Make the account of a proxy."""
    return account(broker, "proxy", *(rights or (SPEAK,)))


def speech_of(
    broker: ServedBroker, who: Credentials | None, *, age_s: float = 0.0, address: HostAddress = CLIENT
) -> Speech:
    """Return what a client has signed, as a proxy passes it on."""
    if who is None:
        return Speech(address)
    text = format_date(broker.memory.env.wall_ms() / 1000 - age_s)
    return Speech(address, who.access_key, text, sign_text(who.secret, text))


def spoken(
    broker: ServedBroker,
    proxy: Credentials,
    speech: Speech,
    code: int = 310,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    client: FakeClient | None = None,
) -> RemotingCommand:
    """Return the answer to a request that a proxy sends for a client: by default a send to T1."""
    fields = {**(send_ext("T1") if ext is None else ext), **speech.ext}
    return ask(client or broker.client("proxy/1"), code, signed(fields, body, proxy), body, 0)


@pytest.fixture
def broker() -> ServedBroker:
    return guarded()


ALL_CODES = guarded()
"""Broker in which no test changes anything but the rights of the account `app`."""
PROXY = with_proxy(ALL_CODES)
make_account(ALL_CODES, "app")
make_account(ALL_CODES, "admin", "Super")
make_account(ALL_CODES, "mute")


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_request_of_any_code_is_judged_by_the_account_that_it_is_spoken_for(request_name: str) -> None:
    """The proxy's account has no right but to speak, and no request gets the rights of an administrator by speech."""
    code, ext = REQUESTS[request_name]
    before = effects(ALL_CODES)
    for speech in (
        speech_of(ALL_CODES, credentials("app")),
        speech_of(ALL_CODES, Credentials("admin", "a guess")),
        speech_of(ALL_CODES, None),
        changed(speech_of(ALL_CODES, credentials("admin")), signature=""),
        speech_of(ALL_CODES, credentials("admin"), age_s=301.0),
    ):
        client = ALL_CODES.client(f"proxy/{code}")
        answer = spoken(ALL_CODES, PROXY, speech, code, ext, client=client)
        is_own = speech.account == "app" and code in FOR_EVERY_ACCOUNT
        assert is_own or (answer.code not in ANSWERS and answer.body == b""), (speech, answer)
    for mute in ("mute", "admin"):
        answer = spoken(ALL_CODES, credentials(mute), speech_of(ALL_CODES, credentials("admin")), code, ext)
        assert (answer.code, answer.body) == (REFUSED, b"")
        assert f"User:{mute} may not speak for others" in (answer.remark or "")
    assert effects(ALL_CODES) == before


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_spoken_request_needs_the_rights_of_its_route_and_no_other(request_name: str, broker: ServedBroker) -> None:
    code, ext = REQUESTS[request_name]
    proxy, who = with_proxy(broker), make_account(broker, "app")
    admin = make_account(broker, "admin", "Super")
    route = broker.service.requests.route(code)
    for demand in demands_of(broker, code, ext):
        assert spoken(broker, proxy, speech_of(broker, who), code, ext).code != 0
        if demand.kind is ResourceKind.CLUSTER:
            answer = spoken(broker, proxy, speech_of(broker, admin), code, ext)
            assert "has no permission to access Cluster" in (answer.remark or "")
        for action in demand.actions[:1]:  # an administrator's right has no action
            allow(broker, "app", f"{demand.kind}:{demand.name or '*'}", action)
    if route.rights is ADMIN:
        before = effects(broker)
        for each in (who, admin):
            answer = spoken(broker, proxy, speech_of(broker, each), code, ext)
            assert "administrators only" in (answer.remark or ""), answer
        assert effects(broker) == before
    else:
        answer = spoken(broker, proxy, speech_of(broker, who), code, ext)
        assert "has no permission to access" not in (answer.remark or "")


def changed(speech: Speech, **changes: str) -> Speech:
    """Return a speech with other texts."""
    return msgspec.structs.replace(speech, **changes)


def test_signatures_of_all_real_clients_are_right_and_all_others_wrong(broker: ServedBroker) -> None:
    proxy, who = with_proxy(broker), account(broker, "app", "Topic:T1 Pub")
    right = speech_of(broker, who)
    for header in (
        f"MQv2-HMAC-SHA1 Credential=app, SignedHeaders=x-mq-date-time, Signature={right.signature}",
        f"MQv2-HMAC-SHA1 Credential=app/cn/RocketMQ, SignedHeaders=x-mq-date-time, Signature={right.signature.upper()}",
    ):
        name, signature = parse_authorization(header)
        assert spoken(broker, proxy, changed(right, account=name, signature=signature)).code == 0
    assert spoken(broker, proxy, changed(right, account="app/cn/RocketMQ")).code == 0
    for changes in (
        {"signature": right.signature[:-1]},
        {"signature": sign_text("another", right.text)},
        {"signature": "é" * 40},
        {"text": format_date(1.0)},
        {"text": "", "signature": sign_text(who.secret, "")},
        {"text": "now", "signature": sign_text(who.secret, "now")},
        {"account": "nobody"},
        {"account": "x" * 200},
        {"account": "dledger.root", "signature": sign_text(KEYS.root_secrets[0], right.text)},
        {"signature": "0" * 129},
    ):
        answer = spoken(broker, proxy, changed(right, **changes))
        assert answer.code == REFUSED, (changes, answer)
    for ext in ({"dledgerForAccount": "app"}, {"dledgerForAddress": "localhost:1"}, {"dledgerForAddress": "1.2.3.4"}):
        answer = ask(broker.client(), 310, signed({**send_ext("T1"), **ext}, b"", proxy), b"", 0)
        assert (answer.code, "dledgerForAddress" in (answer.remark or "")) == (REFUSED, True)
    unsigned = ask(broker.client(), 310, {**send_ext("T1"), **right.ext}, b"", 0)
    assert (unsigned.code, "not signed" in (unsigned.remark or "")) == (REFUSED, True)


def test_a_signed_date_counts_for_a_bounded_time(broker: ServedBroker) -> None:
    proxy, who = with_proxy(broker), account(broker, "app", "Topic:T1 Pub")
    outcomes = {
        age_s: spoken(broker, proxy, speech_of(broker, who, age_s=age_s)).code for age_s in (299, -298, 302, -302)
    }
    assert outcomes == {299: 0, -298: 0, 302: REFUSED, -302: REFUSED}
    as_root_settings(broker, "max_spoken_age_ms=1000")
    answer = spoken(broker, proxy, speech_of(broker, who, age_s=3))
    assert (answer.code, "the limit is 1 s" in (answer.remark or "")) == (REFUSED, True)


@pytest.mark.parametrize(
    ("offsets", "zone", "accepted"),
    [
        ("+08:00 -05:30", "UTC", {0, 8, -5.5}),
        ("local", "Asia/Shanghai", {0, 8}),
        ("local", "UTC", {0}),
        ("", "Asia/Shanghai", {0}),
    ],
)
def test_a_date_of_a_client_that_signs_its_local_time_counts_in_the_configured_time_zones(
    offsets: str, zone: str, accepted: set[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    broker = guarded_broker(config=replace(CONFIG, spoken_utc_offsets=offsets))
    try:
        proxy, who = with_proxy(broker), account(broker, "app", "Topic:T1 Pub")
        outcomes = {
            hours: {
                spoken(broker, proxy, speech_of(broker, who, age_s=age_s - hours * 3600)).code
                for age_s in (298, -298, 302, -302)
            }
            for hours in (0, 8, -5.5, -8)
        }
        assert outcomes == {hours: {0, REFUSED} if hours in accepted else {REFUSED} for hours in outcomes}
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_offset_that_is_none_is_a_fault_of_the_configuration() -> None:
    for text in ("+8", "08:00", "+15:00", "Asia/Shanghai"):
        with pytest.raises(ConfigError, match=r"UTC offsets such as \+08:00"):
            replace(CONFIG, spoken_utc_offsets=text)


def as_root_settings(broker: ServedBroker, text: str) -> None:
    assert call(broker.client("root/1"), ROOT_CREDENTIALS, 25, {}, text.encode()).code == 0


def test_the_address_that_a_proxy_names_decides_about_rules_and_white_lists(broker: ServedBroker) -> None:
    proxy, who = with_proxy(broker), make_account(broker, "app")
    allow(broker, "app", "Topic:T1", "Pub", sources=("192.0.2.0/24",))
    elsewhere = HostAddress("198.51.100.1", 1)
    assert spoken(broker, proxy, speech_of(broker, who)).code == 0
    assert spoken(broker, proxy, speech_of(broker, who, address=elsewhere)).code == REFUSED
    named = Speech(CLIENT, "app")
    assert spoken(broker, proxy, named).code == REFUSED
    as_root(broker, 50, {"accessKey": "app", "whiteRemoteAddress": "192.0.2.7"})
    assert spoken(broker, proxy, named).code == 0
    assert spoken(broker, proxy, Speech(elsewhere, "app")).code == REFUSED
    own = {**send_ext("T1"), "AccessKey": "app"}
    assert broker.client("other/1").call(310, own).code == REFUSED, "the address of another client lends nothing"
    as_root(broker, 53, {"globalWhiteAddrs": "198.51.100.*"})
    assert spoken(broker, proxy, Speech(elsewhere)).code == 0
    assert spoken(broker, proxy, Speech(CLIENT)).code == REFUSED
    as_root(broker, 53, {"globalWhiteAddrs": "10.0.0.9"})
    assert spoken(broker, proxy, Speech(CLIENT)).code == REFUSED, "the proxy's own address lends its clients nothing"
    unsigned = ask(broker.client(), 310, {**send_ext("T1"), **Speech(CLIENT).ext}, b"", 0)
    assert (unsigned.code, "not signed" in (unsigned.remark or "")) == (REFUSED, True)
    as_root(broker, 50, {"accessKey": "proxy", "whiteRemoteAddress": "10.0.0.9"})
    allow(broker, "proxy", "Topic:T1", "Pub")
    wrong = changed(speech_of(broker, who, address=elsewhere), signature="00")
    assert spoken(broker, proxy, wrong).code == REFUSED, "the proxy's own rights are not its clients'"


def test_only_a_rule_for_it_lets_an_account_speak_and_only_from_its_addresses(broker: ServedBroker) -> None:
    who = account(broker, "app", "Topic:T1 Pub")
    everything = account(broker, "everything", "Cluster:* All", "Topic:* All", "Group:* All")
    assert spoken(broker, everything, speech_of(broker, who)).code == REFUSED
    make_account(broker, "proxy")
    allow(broker, "proxy", "Cluster:DefaultCluster", "Speak", sources=("10.0.0.9",))
    proxy, far = credentials("proxy"), broker.client("proxy/2")
    far.address = HostAddress("10.0.0.10", 1)
    assert spoken(broker, proxy, speech_of(broker, who)).code == 0
    assert spoken(broker, proxy, speech_of(broker, who), client=far).code == REFUSED
    answer = call(broker.client(), who, 3006, {"subject": "User:app"}, b"{}")
    assert (answer.code, "administrators only" in (answer.remark or "")) == (REFUSED, True)


def test_a_proxy_without_the_right_any_more_loses_its_clients_waiting_requests() -> None:
    """A waiting pull is judged again when it wakes: by the date of its arrival, and by the present rights."""
    broker = guarded_broker()
    proxy, who = with_proxy(broker), account(broker, "app", "Topic:T1 Sub Pub", "Group:CG Sub")
    waiting = pull_ext("T1", queueId="1", queueOffset="0", sysFlag="6", suspendTimeoutMillis="500000", subscription="*")

    def wait(key: str) -> tuple[FakeClient, int]:
        client = broker.client(key)
        opaque = client.send(11, signed({**waiting, **speech_of(broker, who).ext}, b"", proxy))
        broker.settle()
        assert not client.answers
        return client, opaque

    def arrive() -> None:
        assert spoken(broker, proxy, speech_of(broker, who), 310, {**send_ext("T1"), "e": "1"}).code == 0
        broker.settle()

    as_root_settings(broker, "max_spoken_age_ms=1000")
    first, opaque = wait("proxy/3")
    allow(broker, "app", "Topic:T2", "Pub")
    broker.advance(5.0)
    arrive()
    assert first.answered(opaque).code == 0, "its date was right when it came"
    waiting["queueOffset"] = "1"
    second, opaque = wait("proxy/4")
    allow(broker, "proxy", "Cluster:*", "Speak", decision="Deny")
    assert call(broker.client(), who, 310, {**send_ext("T1"), "e": "1"}).code == 0
    broker.settle()
    assert second.answered(opaque).code == REFUSED
    allow(broker, "proxy", "Cluster:*", "Speak")
    waiting["queueOffset"] = "2"
    third, opaque = wait("proxy/5")
    secret = {"username": "proxy", "password": "another"}
    as_root(broker, UPDATE_USER, {"username": "proxy"}, secret)
    assert call(broker.client(), who, 310, {**send_ext("T1"), "e": "1"}).code == 0
    broker.settle()
    assert third.answered(opaque).code == REFUSED, "the proxy has signed it with a secret that has ended"


def test_wrong_signatures_through_a_proxy_slow_down_one_client_and_not_the_proxy(broker: ServedBroker) -> None:
    proxy, who = with_proxy(broker), account(broker, "app", "Topic:T1 Pub")
    client = broker.client("proxy/1")
    assert spoken(broker, proxy, speech_of(broker, who), client=client).code == 0
    guess = Credentials("app", "a guess at a secret")
    codes = [spoken(broker, proxy, speech_of(broker, guess), client=client).code for _ in range(BURST + 2)]
    assert codes == [REFUSED] * BURST + [ResponseCode.SYSTEM_BUSY] * 2
    assert spoken(broker, proxy, speech_of(broker, who, address=HostAddress("192.0.2.8", 1)), client=client).code == 0


def test_a_heartbeat_that_a_proxy_passes_on_registers_the_client_itself(broker: ServedBroker) -> None:
    """Its account decides about checks of transactions, and its address is shown."""
    proxy, who = with_proxy(broker), make_account(broker, "app")
    client = broker.client("proxy/1")
    assert spoken(broker, proxy, speech_of(broker, who), 34, {}, PRODUCING, client=client).code == 0
    assert call(client, proxy, 34, {}, PRODUCING.replace(b'"c"', b'"own"')).code == 0
    local = broker.service.gossip.local
    assert local.index.rows["c"].address == str(CLIENT)
    principal, accounts = local.principal_of("c"), broker.table(ACCOUNTS)
    versions = [found.version for name in ("app", "proxy") if (found := accounts.get(name)) is not None]
    assert principal == Principal("app", versions[0], False, False, "proxy", versions[1], CLIENT.ip)
    assert call(client, proxy, 35, {"clientID": "own", "producerGroup": "PG"}).code == 0

    def pushed() -> list[int]:
        client.pushed.clear()
        broker.service.relay.call_producer("PG", 39, {"topic": "T1"}, b"the message", 0.0, lambda _: None)
        broker.settle()
        return [code for code, _ in client.pushed]

    assert pushed() == []
    allow(broker, "app", "Topic:T1", "Pub", sources=("192.0.2.7",))
    assert pushed() == [39]
    allow(broker, "proxy", "Cluster:*", "Speak", decision="Deny")
    assert pushed() == []


def test_a_lease_belongs_to_the_account_that_popped_through_a_proxy() -> None:
    """A client of another account with the same id renews nothing."""
    broker = with_revivals(guarded_broker())
    proxy, rights = with_proxy(broker), ("Topic:T1 Sub Pub", "Group:CG Sub")
    first, second = account(broker, "first", *rights), account(broker, "second", *rights)
    assert spoken(broker, proxy, speech_of(broker, first)).code == 0
    leased = pop_ext(**{LEASE_FIELD: "c", "invisibleTime": "60000"})
    assert spoken(broker, proxy, speech_of(broker, first), 200050, leased).code == 0
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"CG","subscriptionDataSet":[{"topic":"T1"}]}]}'

    def live(who: Credentials) -> int:
        for _ in range(8):
            assert spoken(broker, proxy, speech_of(broker, who), 34, {}, body).code == 0
            let_pass(broker, 10.0)
        return spoken(broker, proxy, speech_of(broker, second), 200050, pop_ext()).code

    assert live(first) == 210
    assert live(second) == 0


def test_the_audit_log_and_refusals_name_the_proxy_and_its_client(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    broker = make_served_broker(replace(CONFIG, audit_days=1), BrokerInMemory())
    broker.memory.create_topic("T1")
    proxy, who = with_proxy(broker), account(broker, "app", "Topic:T1 Delete")
    audit = broker.service.requests.audit.log
    audit.open(tmp_path, 1)
    assert spoken(broker, proxy, speech_of(broker, who), 215, {"topic": "T1"}).code == 0
    audit.close()
    [line] = [json.loads(line) for line in (tmp_path / "audit.log").read_text("ascii").splitlines()]
    assert (line["who"], line["from"], line["what"]) == (
        "app through proxy",
        str(CLIENT),
        "DELETE_TOPIC_IN_BROKER",
    )
    with caplog.at_level(logging.WARNING):
        assert spoken(broker, proxy, speech_of(broker, who), 310, send_ext("T2")).code == REFUSED
        assert spoken(broker, who, speech_of(broker, credentials("x"))).code == REFUSED
    assert f"client={CLIENT}" in caplog.messages[0]
    assert "client=10.0.0.9:40000" in caplog.messages[1], "nobody has proven the other address"


def test_a_leader_checks_what_a_proxy_says_at_another_node_by_itself(broker: ServedBroker) -> None:
    proxy, who = with_proxy(broker), account(broker, "app", "Topic:T1 Pub")
    of_proxy = Principal("app", 1, by_address=True, speaker="proxy", speaker_version=1, ip="192.0.2.7")
    assert _principal_to_send(of_proxy) is None, "an older leader could not decode it"

    def answer_to(ext: dict[str, str]) -> int:
        replies: list[bytes] = []
        header = encode_json_header(RemotingCommand(310, opaque=7, ext=ext))
        envelope = Envelope("n1/1", "10.0.0.9", 40_000, ("a",), 0, 0, header, b"", 3)
        origin = ForwardedOrigin(envelope, replies.append)
        broker.service.requests.receive_forwarded(origin, Frame(0, header, b""), broker.memory.env.now(), None)
        broker.settle()
        return decode_answer(replies)

    assert answer_to(signed({**send_ext("T1"), **speech_of(broker, who).ext}, b"", proxy)) == 0
    guess = Credentials("app", "a guess")
    assert answer_to(signed({**send_ext("T1"), **speech_of(broker, guess).ext}, b"", proxy)) == REFUSED
    assert answer_to(signed({**send_ext("T1"), **speech_of(broker, who).ext}, b"", who)) == REFUSED


def decode_answer(replies: list[bytes]) -> int:
    [reply] = replies
    return decode_command(only_frame(reply[1:])).code


def test_nobody_may_speak_while_a_node_does_not_understand_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = BrokerInMemory()
    broker = make_served_broker(CONFIG, memory)
    memory.create_topic("T1")
    who = account(broker, "proxy")
    since = memory.machine.state.activation.since
    position = since.pop("speakers")
    entry = {"resource": "Cluster:*", "actions": ["Speak"], "decision": "Allow"}
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()

    def give() -> RemotingCommand:
        return call(broker.client("root/1"), ROOT_CREDENTIALS, CREATE_ACL, {"subject": "User:proxy"}, body)

    answer = give()
    assert (answer.code, "'speakers' is not active" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    assert spoken(broker, who, speech_of(broker, who)).code == REFUSED
    since["speakers"] = position
    staged: list[str] = []
    overlay = memory.machine.overlay
    stage = overlay.stage_command

    def note(command: Command, done: Done, *, privileged: bool = False) -> None:
        staged.append(type(command).__name__)
        stage(command, done, privileged=privileged)

    monkeypatch.setattr(overlay, "stage_command", note)
    assert give().code == 0
    assert staged == ["PutSpeaker"], "an earlier version stops at this command, and cannot misread the account"
