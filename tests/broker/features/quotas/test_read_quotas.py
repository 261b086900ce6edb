"""Quotas of reads: who has read too much waits for the next answer, as with Kafka, and nobody else notices."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker, pull_ext, records, send_ext

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.quotas.admission import MAX_HELD, MAX_HELD_BYTES, READ_HOLD_S, TICK_S
from dledger_remoting.command import RemotingCommand
from dledger_remoting.properties import TAGS, format_properties
from dledger_remoting.signatures import signed
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.broker.features.accounts.guarded_broker import allow, as_root, guarded_broker, make_account
from tests.broker.features.accounts.guarded_broker import call as call_as
from tests.broker.features.pop.pop_calls import POP, pop, pop_ext
from tests.broker.features.quotas.quota_calls import BUSY, PUT, codes, forwarded, put, send_many, told

PULL, PEEK = 11, 200052
COMMITS = "5"
"""`sysFlag` of a pull that has a subscription, and commits an offset."""
WAITS = "6"


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    """Of a broker with 12 messages in queue 0 of T1, and a group."""
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
    client = broker.client()
    assert codes(client, send_many(client, 12)) == [0] * 12
    return client


def pull(client: FakeClient, offset: int = 0, most: int = 5, **fields: str) -> int:
    opaque = client.send(PULL, pull_ext("T1", offset=offset, maxMsgNums=str(most), **fields))
    client.broker.settle()
    return opaque


def count(answer: RemotingCommand) -> int:
    assert answer.code == 0, answer.remark
    return len(records(answer))


def test_a_pull_waits_until_what_was_read_before_is_within_the_quota(client: FakeClient) -> None:
    assert put(client, "topic-reads", "T1", messages=5) == 0
    assert count(client.answered(pull(client))) == 5
    waiting = pull(client, 5)
    assert not client.has_answer(waiting)
    client.broker.advance(0.2 + 2 * TICK_S)
    assert count(client.answered(waiting)) == 5
    assert told(client) == {"topic-reads T1": (1, 0)}


def test_what_was_read_in_advance_is_missing_to_those_behind(client: FakeClient) -> None:
    """Many that wait go on one by one, as each is charged, and not all at once."""
    put(client, "topic-reads", "T1", messages=10)
    pulls = [pull(client, most=10) for _ in range(4)]
    client.broker.advance(0.5)
    assert codes(client, pulls) == [0, 0]


def test_many_small_reads_that_wait_go_on_as_fast_as_their_quota_allows(client: FakeClient) -> None:
    """One at a tick, 50 a second, is what all would get as long as two clients read again at once."""
    put(client, "topic-reads", "T1", messages=200)
    assert codes(client, [pull(client, most=10) for _ in range(20)]) == [0] * 20
    pulls = [pull(client, most=1) for _ in range(60)]
    assert codes(client, pulls) == []
    client.broker.advance(0.4)
    assert codes(client, pulls) == [0] * 60


def test_a_pull_is_refused_at_last_and_its_client_told_why(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", size=100)
    assert count(client.answered(pull(client))) == 5
    waiting = pull(client, 5)
    client.broker.advance(READ_HOLD_S + TICK_S)
    answer = client.answered(waiting)
    assert (answer.code, answer.remark) == (
        BUSY,
        "the quota of topic-reads T1, 100 bytes/s, is used up: this request read nothing, ask again later",
    )
    client.broker.advance(60.0)
    assert count(client.call_from_disk(PULL, pull_ext("T1", maxMsgNums="5"))) == 5


def test_no_more_reads_wait_than_may(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=1)
    pull(client)
    pulls = [pull(client) for _ in range(MAX_HELD + 1)]
    assert codes(client, pulls) == [BUSY]


def test_reads_that_find_nothing_do_not_wait_behind_each_other(client: FakeClient) -> None:
    """They use nothing: a hundred a second would wait, and be refused, for a quota that is not used."""
    put(client, "topic-reads", "T1", messages=5)
    pull(client)
    waiting = [pull(client, offset=12) for _ in range(60)]
    client.broker.advance(0.2 + TICK_S)
    assert not all(map(client.has_answer, waiting))
    assert client.has_answer(pull(client, offset=12))
    client.broker.advance(0.2)
    assert all(map(client.has_answer, waiting))


def test_a_quota_of_reads_that_is_taken_back_holds_nobody(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=1)
    pull(client)
    waiting = [pull(client, offset=12) for _ in range(100)]
    put(client, "topic-reads", "T1")
    client.broker.settle()
    client.broker.advance(2 * TICK_S)
    assert all(map(client.has_answer, waiting))


def test_who_is_gone_takes_no_place(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=4)
    pull(client, most=4)
    gone = client.broker.client("gone/1")
    pulls = [pull(gone) for _ in range(MAX_HELD)]
    assert codes(gone, pulls) == []
    gone.is_open = False
    waiting = pull(client, most=1)
    client.broker.advance(0.3)
    assert count(client.answered(waiting)) == 1


def test_a_pop_that_waits_hides_nothing_for_who_is_gone(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=4)
    assert [one.point.queue_offset for one in pop(client, maxMsgNums="4")] == [0, 1, 2, 3]
    gone = client.broker.client("gone/1")
    sent = gone.send(POP, pop_ext("T1", maxMsgNums="4"))
    client.broker.settle()
    assert not gone.has_answer(sent)
    gone.is_open = False
    client.broker.advance(0.3)
    assert [one.point.queue_offset for one in pop(client, maxMsgNums="4")] == [4, 5, 6, 7]


def test_what_waits_counts_as_memory(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=1)
    pull(client)
    large = [client.send(PULL, pull_ext("T1"), bytes(1 << 20)) for _ in range(MAX_HELD_BYTES >> 20)]
    assert codes(client, large) == []
    assert codes(client, [pull(client)]) == [BUSY]


@pytest.mark.parametrize(("code", "ext"), [(POP, pop_ext("T1")), (PEEK, pop_ext("T1"))])
def test_pops_and_peeks_count_and_wait_too(client: FakeClient, code: int, ext: dict[str, str]) -> None:
    put(client, "topic-reads", "T1", messages=5)
    ask = {**ext, "maxMsgNums": "5", "queueId": "0", "initMode": "0"}
    assert client.call(code, ask).code == 0
    waiting = client.send(code, ask)
    client.broker.settle()
    assert not client.has_answer(waiting)
    client.broker.advance(0.2 + 2 * TICK_S)
    assert client.answered(waiting).code == 0


def test_a_poll_that_is_woken_waits_if_others_have_read_too_much_meanwhile(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=5)
    poll = pull(client, 12, sysFlag=WAITS, suspendTimeoutMillis="15000")
    assert count(client.answered(pull(client))) == 5
    assert client.call(310, send_ext("T1")).code == 0
    assert not client.has_answer(poll)
    client.broker.advance(0.2 + 2 * TICK_S)
    assert count(client.answered(poll)) == 1


def test_a_pop_that_is_woken_waits_too(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=5)
    poll = client.send(POP, {**pop_ext("T1"), "queueId": "1", "pollTime": "15000"})
    assert count(client.answered(pull(client))) == 5
    assert client.call(310, send_ext("T1", 1)).code == 0
    client.broker.settle()
    assert not client.has_answer(poll)
    client.broker.advance(0.2 + 2 * TICK_S)
    assert client.answered(poll).code == 0


def test_an_offset_that_a_pull_brings_is_committed_once_though_it_waits(client: FakeClient) -> None:
    """A newer one, committed meanwhile, stays."""
    put(client, "topic-reads", "T1", messages=10)
    pull(client, most=12)
    waiting = pull(client, 5, sysFlag=COMMITS, commitOffset="5")
    newer = client.send(15, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "8"})
    client.broker.advance(0.25)
    assert client.answered(newer).code == 0
    assert not client.has_answer(waiting)
    client.broker.advance(0.1)
    assert count(client.answered(waiting)) == 5
    client.broker.advance(1.0)
    assert client.broker.memory.machine.state.table(OFFSETS).of("CG", "T1") == {0: 8}


def test_sends_and_reads_have_quotas_of_their_own(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=1)
    put(client, "topic", "T1", messages=5)
    pull(client)
    assert codes(client, send_many(client, 5)) == [0] * 5
    put(client, "topic-reads", "T1")
    assert count(client.answered(pull(client))) == 5
    assert codes(client, send_many(client, 1)) == []


def test_a_quota_of_an_account_holds_nobody_else() -> None:
    broker = guarded_broker()
    client = broker.client()
    accounts = [make_account(broker, name) for name in ("greedy", "neighbour")]
    for who in accounts:
        allow(broker, who.access_key, "Topic:T1", "Pub", "Sub")
        allow(broker, who.access_key, "Group:CG", "Sub")
        assert call_as(client, who, 310, send_ext("T1")).code == 0
    body = {"kind": "account-reads", "name": "greedy", "messagesPerSecond": 1}
    as_root(broker, PUT, {}, body)
    greedy, neighbour = accounts
    assert call_as(client, greedy, PULL, pull_ext("T1")).code == 0
    waiting = client.send(PULL, signed(pull_ext("T1"), b"", greedy))
    for _ in range(20):
        assert call_as(broker.client("client/2"), neighbour, PULL, pull_ext("T1")).code == 0
    assert not client.has_answer(waiting)


@pytest.mark.parametrize(
    ("code", "ext"),
    [(PULL, pull_ext("T1", offset=5)), (POP, pop_ext("T1")), (PEEK, pop_ext("T1"))],
)
def test_what_a_read_has_waited_elsewhere_counts(client: FakeClient, code: int, ext: dict[str, str]) -> None:
    """1. A read waits almost as long as it may. 2. Another node leads, and it is passed on. 3. If it waited as long
    once more, its client would have given up.
    """
    put(client, "topic-reads", "T1", size=1)
    pull(client)
    replies = forwarded(client, code, ext, READ_HOLD_S - 0.5)
    assert replies == []
    client.broker.advance(0.5 + TICK_S)
    (reply,) = replies
    assert b"is used up: this request read nothing" in reply


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (PULL, pull_ext("T1", offset=5, sysFlag=WAITS, suspendTimeoutMillis="15000")),
        (POP, {**pop_ext("T1"), "pollTime": "15000"}),
    ],
)
def test_who_asks_to_wait_for_messages_waits_for_a_quota_after_that_too(
    client: FakeClient, code: int, ext: dict[str, str]
) -> None:
    put(client, "topic-reads", "T1", size=1)
    pull(client)
    replies = forwarded(client, code, ext, 15.0)
    client.broker.advance(READ_HOLD_S - 2 * TICK_S)
    assert replies == []
    client.broker.advance(3 * TICK_S)
    assert len(replies) == 1


def test_a_poll_that_nothing_matches_waits_for_no_quota(client: FakeClient) -> None:
    """Else it would be refused in the end, for messages that it is never given."""
    put(client, "topic-reads", "T1", messages=12)
    waits = {"sysFlag": WAITS, "suspendTimeoutMillis": "15000"}
    by_tag = pull(client, 12, subscription="red", **waits)
    in_sql = pull(client, 12, subscription="TAGS = 'red'", expressionType="SQL92", **waits)
    popped = client.send(POP, {**pop_ext("T1"), "queueId": "1", "pollTime": "15000", "expType": "TAG", "exp": "red"})
    pull(client, most=12)
    for queue_id in (0, 1):
        assert client.call(310, send_ext("T1", queue_id, format_properties({TAGS: "blue"}))).code == 0
    client.broker.settle()
    assert told(client) == {"topic-reads T1": (0, 0)}
    for queue_id in (0, 1):
        assert client.call(310, send_ext("T1", queue_id, format_properties({TAGS: "red"}))).code == 0
    client.broker.settle()
    assert told(client) == {"topic-reads T1": (3, 0)}
    client.broker.advance(0.5)
    assert [len(records(client.answered(poll))) for poll in (by_tag, in_sql, popped)] == [1, 1, 1]
