"""Quotas of reads, and what an account is charged for: as in Kafka, its next answers or sends wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from served_broker import FakeClient, ServedBroker, make_group, make_served_broker, pull_ext, records, send_ext, submit

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.quotas.gate import MAX_HELD, MAX_HELD_BYTES, READ_HOLD_S, TICK_S
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.command import RemotingCommand
from dledger_remoting.properties import TAGS, format_properties
from dledger_remoting.signatures import Credentials, signed
from tests.broker.features.accounts.guarded_broker import (
    CONFIG,
    ROOT_CREDENTIALS,
    allow,
    call,
    guarded_broker,
    make_account,
)
from tests.broker.features.accounts.guarded_broker import call as call_as
from tests.broker.features.pop.pop_calls import POP, pop, pop_ext
from tests.broker.features.quotas.quota_calls import BUSY, codes, forwarded, limit, put, send_many, told
from tests.broker.requests.test_crossing_changes import topic_ext

PULL, PEEK = 11, 200052
COMMITS = "5"
"""`sysFlag` of a pull that has a subscription, and commits an offset."""
WAITS = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}
POLLS = [(PULL, pull_ext("T1", offset=12, **WAITS)), (POP, pop_ext("T1", queueId="1", pollTime="15000"))]


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    """Return a client of a broker with 12 messages in queue 0 of T1, and a group."""
    make_group(broker)
    client = broker.client()
    assert codes(client, send_many(client, 12)) == [0] * 12
    return client


def pull(client: FakeClient, offset: int = 0, most: int = 5, **fields: str) -> int:
    return submit(client, PULL, pull_ext("T1", offset=offset, maxMsgNums=str(most), **fields))


def count(answer: RemotingCommand) -> int:
    assert answer.code == 0, answer.remark
    return len(records(answer))


def test_a_pull_waits_until_earlier_reads_are_within_the_quota(client: FakeClient) -> None:
    assert put(client, "topic-reads", "T1", messages=5) == 0
    assert count(client.answered(pull(client))) == 5
    waiting = pull(client, 5)
    assert not client.has_answer(waiting)
    client.broker.advance(0.2 + 2 * TICK_S)
    assert count(client.answered(waiting)) == 5
    assert told(client) == {"topic-reads T1": (1, 0)}


def test_a_read_that_overdraws_its_quota_delays_later_reads(client: FakeClient) -> None:
    """One waiting read after the other goes on as each is charged, and not all at once."""
    put(client, "topic-reads", "T1", messages=10)
    pulls = [pull(client, most=10) for _ in range(4)]
    client.broker.advance(0.5)
    assert codes(client, pulls) == [0, 0]


def test_many_small_held_reads_continue_at_the_rate_of_their_quota(client: FakeClient) -> None:
    """With one read at a tick, all together would get 50 a second as long as two clients read again at once."""
    put(client, "topic-reads", "T1", messages=200)
    assert codes(client, [pull(client, most=10) for _ in range(20)]) == [0] * 20
    pulls = [pull(client, most=1) for _ in range(60)]
    assert codes(client, pulls) == []
    client.broker.advance(0.4)
    assert codes(client, pulls) == [0] * 60


def test_a_pull_held_for_too_long_is_refused_with_the_quota_in_the_text(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", size=100)
    assert count(client.answered(pull(client))) == 5
    waiting = pull(client, 5)
    client.broker.advance(READ_HOLD_S + TICK_S)
    text = "the quota of topic-reads T1, 100 bytes/s, is used up: this request read nothing, ask again later"
    assert (client.answered(waiting).code, client.answered(waiting).remark) == (BUSY, text)
    client.broker.advance(60.0)
    assert count(client.call_from_disk(PULL, pull_ext("T1", maxMsgNums="5"))) == 5


@pytest.mark.parametrize(("body", "held"), [(b"", MAX_HELD), (bytes(1 << 20), MAX_HELD_BYTES >> 20)])
def test_reads_beyond_the_number_or_the_bytes_of_held_reads_are_refused(
    client: FakeClient, body: bytes, held: int
) -> None:
    put(client, "topic-reads", "T1", messages=1)
    pull(client)
    assert codes(client, [submit(client, PULL, pull_ext("T1"), body) for _ in range(held)]) == []
    assert codes(client, [pull(client)]) == [BUSY]


def test_reads_that_find_nothing_do_not_wait_behind_each_other(client: FakeClient) -> None:
    """A hundred of them in a second would wait, and be refused, for a quota that is not used."""
    put(client, "topic-reads", "T1", messages=5)
    pull(client)
    waiting = [pull(client, offset=12) for _ in range(60)]
    client.broker.advance(0.2 + TICK_S)
    assert not all(map(client.has_answer, waiting))
    assert client.has_answer(pull(client, offset=12))
    client.broker.advance(0.2)
    assert all(map(client.has_answer, waiting))


def test_a_deleted_read_quota_releases_its_held_reads(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=1)
    pull(client)
    waiting = [pull(client, offset=12) for _ in range(100)]
    put(client, "topic-reads", "T1")
    client.broker.advance(2 * TICK_S)
    assert all(map(client.has_answer, waiting))


def test_held_reads_of_a_closed_connection_free_their_places(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=4)
    pull(client, most=4)
    gone = client.broker.client("gone/1")
    pulls = [pull(gone) for _ in range(MAX_HELD)]
    assert codes(gone, pulls) == []
    gone.is_open = False
    waiting = pull(client, most=1)
    client.broker.advance(0.3)
    assert count(client.answered(waiting)) == 1


def test_a_held_pop_of_a_closed_connection_hides_no_messages(client: FakeClient) -> None:
    put(client, "topic-reads", "T1", messages=4)
    assert [one.point.queue_offset for one in pop(client, maxMsgNums="4")] == [0, 1, 2, 3]
    gone = client.broker.client("gone/1")
    assert not gone.has_answer(submit(gone, POP, pop_ext("T1", maxMsgNums="4")))
    gone.is_open = False
    client.broker.advance(0.3)
    assert [one.point.queue_offset for one in pop(client, maxMsgNums="4")] == [4, 5, 6, 7]


@pytest.mark.parametrize("code", [POP, PEEK])
def test_pops_and_peeks_are_charged_to_read_quotas(client: FakeClient, code: int) -> None:
    put(client, "topic-reads", "T1", messages=5)
    ext = pop_ext("T1", maxMsgNums="5", queueId="0")
    assert client.call(code, ext).code == 0
    waiting = submit(client, code, ext)
    assert not client.has_answer(waiting)
    client.broker.advance(0.2 + 2 * TICK_S)
    assert client.answered(waiting).code == 0


@pytest.mark.parametrize(("code", "ext"), POLLS)
def test_a_woken_poll_waits_if_its_quota_is_used_up(client: FakeClient, code: int, ext: dict[str, str]) -> None:
    put(client, "topic-reads", "T1", messages=5)
    poll = submit(client, code, ext)
    assert count(client.answered(pull(client))) == 5
    assert client.call(310, send_ext("T1", int(ext["queueId"]))).code == 0
    assert not client.has_answer(poll)
    client.broker.advance(0.2 + 2 * TICK_S)
    assert count(client.answered(poll)) == 1


def test_a_held_pull_commits_its_offset_once_and_undoes_no_newer_commit(client: FakeClient) -> None:

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


def test_a_quota_of_an_account_holds_no_other_account() -> None:
    broker = guarded_broker()
    client = broker.client()
    accounts = [make_account(broker, name) for name in ("greedy", "neighbour")]
    for who in accounts:
        allow(broker, who.access_key, "Topic:T1", "Pub", "Sub")
        allow(broker, who.access_key, "Group:CG", "Sub")
        assert call_as(client, who, 310, send_ext("T1")).code == 0
    limit(broker, "account-reads", "greedy", 1)
    greedy, neighbour = accounts
    assert call_as(client, greedy, PULL, pull_ext("T1")).code == 0
    waiting = client.send(PULL, signed(pull_ext("T1"), b"", greedy))
    for _ in range(20):
        assert call_as(broker.client("client/2"), neighbour, PULL, pull_ext("T1")).code == 0
    assert not client.has_answer(waiting)


@pytest.mark.parametrize(
    ("code", "ext"), [(PULL, pull_ext("T1", offset=5)), (POP, pop_ext("T1")), (PEEK, pop_ext("T1"))]
)
def test_time_that_a_read_waited_at_another_node_counts(client: FakeClient, code: int, ext: dict[str, str]) -> None:
    """If a forwarded read waited as long once more, its client would have given up."""
    put(client, "topic-reads", "T1", size=1)
    pull(client)
    replies = forwarded(client, code, ext, READ_HOLD_S - 0.5)
    assert replies == []
    client.broker.advance(0.5 + TICK_S)
    (reply,) = replies
    assert b"is used up: this request read nothing" in reply


@pytest.mark.parametrize(
    ("code", "ext"), [(PULL, pull_ext("T1", offset=5, **WAITS)), (POP, pop_ext("T1", pollTime="15000"))]
)
def test_a_forwarded_long_poll_waits_for_its_quota_after_its_poll_time(
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
    """Otherwise the poll would be refused in the end, for messages that it is never given."""
    put(client, "topic-reads", "T1", messages=12)
    by_tag = pull(client, 12, subscription="red", **WAITS)
    in_sql = pull(client, 12, subscription="TAGS = 'red'", expressionType="SQL92", **WAITS)
    popped = client.send(POP, pop_ext("T1", queueId="1", pollTime="15000", expType="TAG", exp="red"))
    pull(client, most=12)
    for tag, held in (("blue", 0), ("red", 3)):
        for queue_id in (0, 1):
            assert client.call(310, send_ext("T1", queue_id, format_properties({TAGS: tag}))).code == 0
        client.broker.settle()
        assert told(client) == {"topic-reads T1": (held, 0)}
    client.broker.advance(0.5)
    assert [len(records(client.answered(poll))) for poll in (by_tag, in_sql, popped)] == [1, 1, 1]


# ---- charges for what an account has the broker store. Those that exist above a limit stay


REFUSED = 16


def broker_of(**limits: int) -> tuple[ServedBroker, FakeClient, Credentials]:
    """Return a broker, and an account that may do everything to topics and groups and send one message a second."""
    broker = make_served_broker(replace(CONFIG, **limits), BrokerInMemory())
    broker.memory.create_topic("T1")
    who = make_account(broker, "app")
    for resource in ("Topic:*", "Group:*"):
        allow(broker, "app", resource, "All")
    limit(broker, "account", "app", 1)
    return broker, broker.client(), who


def make_groups(client: FakeClient, who: Credentials, count: int) -> list[int]:
    return [call(client, who, 11, pull_ext("T1", consumerGroup=f"g{number}")).code for number in range(count)]


def make_topics(client: FakeClient, who: Credentials, count: int) -> list[int]:
    return [call(client, who, 17, topic_ext(f"N{number}")).code for number in range(count)]


def send_back(client: FakeClient, who: Credentials, count: int) -> list[int]:
    for number in range(count):
        call(client, ROOT_CREDENTIALS, 310, send_ext("T1"), str(number).encode())
    found = records(call(client, who, 11, pull_ext("T1", consumerGroup="CG")))
    fields = {"group": "CG", "delayLevel": "-1"}
    asked = [signed({**fields, "offset": str(one.physical_offset)}, b"", who) for one in found]
    return [client.call_from_disk(36, ext).code for ext in asked]


@pytest.mark.parametrize("use", [make_groups, make_topics, send_back])
def test_creations_and_send_backs_are_charged_to_the_account_and_never_refused(use) -> None:
    for count, answer in ((0, 0), (5, BUSY)):
        broker, client, who = broker_of()
        assert set(use(client, who, count)) <= {0, 19, 20}
        sent = client.send(310, signed(send_ext("T1"), b"x", who), b"x")
        broker.advance(1.5)
        assert codes(client, [sent]) == [answer]


@pytest.mark.parametrize(("use", "limit"), [(make_groups, "max_groups"), (make_topics, "max_topics")])
def test_an_account_at_its_limit_keeps_its_groups_and_topics_and_creates_no_more(use, limit: str) -> None:
    broker, client, who = broker_of()
    before = {"max_groups": 0, "max_topics": len(broker.memory.machine.state.topics)}[limit]
    broker, client, who = broker_of(**{limit: before + 2})
    assert [code == REFUSED for code in use(client, who, 4)] == [False, False, True, True]
    assert [code == REFUSED for code in use(client, who, 2)] == [False, False]
    assert limit in call(client, who, *{
        "max_groups": (11, pull_ext("T1", consumerGroup="g9")), "max_topics": (17, topic_ext("N9"))
    }[limit]).remark  # fmt: skip


def test_max_names_per_account_limits_accounts_and_not_administrators() -> None:
    _, client, who = broker_of(max_names_per_account=3)
    assert make_topics(client, who, 2) == [0, 0]
    assert [code == REFUSED for code in make_groups(client, who, 2)] == [False, True]
    assert call(client, who, 310, send_ext("T9"), b"x").code == REFUSED
    assert make_topics(client, ROOT_CREDENTIALS, 5) == [0] * 5
