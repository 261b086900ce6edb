"""Rows: behavior beyond plain sends that applications rely on, for other vendors' clients. See `stories` too.

A row goes through a wiretap. Every unexpected answer fails the row and is reported. With `kills` the leader is killed
in the middle of the row and comes back at its end. Then no message may be lost. A message may be stored as often as
sends of it may have succeeded.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final, NamedTuple, TypeVar

import pytest
from cluster_checks import bodies_of, create_topic, stored_messages, wait_until
from stock_clients import StockClient, StockClientError
from stories import PATIENCE_SECONDS
from wiretap import Exchange, Wiretap

from dledger_client import NoRouteError, ReceivedMessage
from dledger_client.testing import LocalCluster
from dledger_remoting.batch import split_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import REAL_TOPIC, TIMER_OUT_MS
from dledger_remoting.topics import dead_letter_topic, retry_topic

LEVELS = 18
QUICK = f"""
delay_levels = "1s 2s{" 1s" * (LEVELS - 2)}"
region_id = "DefaultRegion"
transaction_timeout_ms = 1000
transaction_check_interval_ms = 2000
transaction_check_max = 1000
"""
"""Configuration of a cluster for these rows: short delays up to RocketMQ's last retry, and a region.

After a kill a producer can be asked for a transaction's state again once it has looked the route up.
"""

MAX_RETRIES = 16
ALWAYS = 1_000
BELIEF_SECONDS = 30.0
"""Time in seconds for which an owner relies on a granted lock."""
RETRY_SECONDS = 90.0
"""Time limit in seconds for retries. A client finds its retry queue by a route lookup, then each takes a second."""
RESEND_PAUSE_SECONDS = 0.2
CPP_ABORTS = "boost::thread_interrupted"
"""Error with which the C++ client sometimes aborts while it stops a consumer (docs/compatibility.md)."""

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
PULL_ANSWERS = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
}
"""Answers to pulls. Java's client pulls before it heartbeats its subscription (24) or the new version of it (25)."""
OTHER_ANSWERS: dict[int, set[ResponseCode]] = {
    RequestCode.PULL_MESSAGE: PULL_ANSWERS,
    RequestCode.LITE_PULL_MESSAGE: PULL_ANSWERS,
    RequestCode.QUERY_CONSUMER_OFFSET: {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND},
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR},
}
"""Answers to requests that may be answered other than 0. Request 38 is answered 1 while a group has no member."""
POP_ANSWERS = {ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT}
OTHER_ANSWERS |= dict.fromkeys((RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION), POP_ANSWERS)
UNSURE = {ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE}
"""Further answers allowed while a group has no leader. Clients try these requests again."""


WAYS: Final[Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "DELAY": lambda: {"level": 2},
    "TIMER_DELAY_SEC": lambda: {"properties": {"TIMER_DELAY_SEC": "2"}},
    "TIMER_DELAY_MS": lambda: {"properties": {"TIMER_DELAY_MS": "1500"}},
    "TIMER_DELIVER_MS": lambda: {"properties": {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 2000)}},
}
"""Arguments of a send for each way in which clients ask for a delay."""
_NUMBERS = count()
T = TypeVar("T")


class Attempts(NamedTuple):
    """Number of attempts at something, and number of attempts that were answered 0."""

    asked: int
    succeeded: int


class Row:
    """Cluster behind a wiretap, with a topic and a group for this row only.

    A client that `asks_once` drops a message until its next start if nobody answers the request that sends it back.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        tap: Wiretap,
        start: Callable[[str], StockClient],
        topic: str,
        *,
        kills: bool,
        asks_once: bool = False,
    ) -> None:
        self.cluster, self.tap, self.topic, self.kills = cluster, tap, topic, kills
        self.group = f"{topic}-group"
        self._asks_once = asks_once
        self._start = start
        self._killed: str | None = None

    def client(self) -> StockClient:
        """Start a client in a process of its own. It takes the tap for the cluster."""
        return self._start(self.tap.namesrv)

    def kill(self, *, sent_back: int = 0) -> None:
        """Kill the leader in the middle of the row, if the row is about that.

        For a client that asks once, first wait until at least `sent_back` messages are sent back and all are answered.
        """
        if self.kills:
            if self._asks_once:
                assert wait_until(lambda: self._are_answered(at_least=sent_back), RETRY_SECONDS), "answers to retries"
            self._killed = self.cluster.kill_leader()

    def _are_answered(self, *, at_least: int) -> bool:
        asked = self.tap.exchanges(RequestCode.CONSUMER_SEND_MSG_BACK)
        return len(asked) >= at_least and all(one.answer is not None for one in asked)

    def expected(self, one: Exchange) -> Collection[int]:
        """Return the codes with which a request may be answered."""
        answers = OTHER_ANSWERS.get(one.code, {ResponseCode.SUCCESS})
        return answers | UNSURE if self._killed else answers

    @contextmanager
    def told(self) -> Iterator[None]:
        """Fail for unexpected answers, at the latest at the end. Afterwards restart the killed node."""
        try:
            with self.tap.told(self.expected):
                yield
                assert not self.tap.surprises(self.expected)
        finally:
            if self._killed is not None:
                self.cluster.restart(self._killed)
                self.cluster.wait_ready()

    @contextmanager
    def reading(self, **options: object) -> Iterator[StockClient]:
        """Create the topic, and yield a client whose consumer `reader` reads it. Fail for unexpected answers."""
        create_topic(self.cluster, self.topic)
        with self.told():
            client = self.client()
            client.call("push", name="reader", group=self.group, topic=self.topic, **options)
            yield client

    def around_the_kill(self, items: Sequence[T]) -> Iterator[T]:
        """Yield items one after the other, with the kill in their middle."""
        for position, item in enumerate(items):
            if position == len(items) // 2:
                self.kill()
            yield item

    def sends(self) -> dict[str, Attempts]:
        """Return the attempts to send each body to the row's topic."""
        return _attempts((body, one) for one in self.tap.exchanges(*SENDS) for body in _bodies(one, self.topic))

    def retries(self) -> Attempts:
        """Return the attempts at retries.

        A message is sent back, or sent to the retry topic by a client that could not send it back.
        """
        retried = [*self.tap.exchanges(RequestCode.CONSUMER_SEND_MSG_BACK)]
        retried += [one for one in self.tap.exchanges(*SENDS) if topic_of(one) == retry_topic(self.group)]
        return _attempts(("", one) for one in retried).get("", Attempts(0, 0))

    def stored(self, topic: str | None = None) -> list[ReceivedMessage]:
        """Return the messages of a topic, by default the row's own. Return none if the topic does not exist."""
        try:
            return stored_messages(self.cluster, topic or self.topic)
        except (NoRouteError, TimeoutError):
            return []


def row_fixture(client: str, *, groups: str = "quick_group", asks_once: bool = False) -> Callable[..., Iterator[Row]]:
    """Return a fixture that yields a row, undisturbed and with a kill. `client` and `groups` name fixtures."""

    @pytest.fixture(params=[False, True], ids=["undisturbed", "leader killed"])
    def row(request: pytest.FixtureRequest) -> Iterator[Row]:
        cluster, start = request.getfixturevalue(groups), request.getfixturevalue(client)
        topic = f"Row{next(_NUMBERS)}-{client}"
        with Wiretap(cluster) as tap:
            yield Row(cluster, tap, start, topic, kills=request.param, asks_once=asks_once)

    return row


def failed_messages_come_again(row: Row) -> None:
    """Check that a failed message comes again after the first retry delay, and is then done if it failed once."""
    bodies = [f"again-{number}" for number in range(12)]
    with row.reading(fails=dict.fromkeys(bodies, 1)) as client:
        for body in bodies[:6]:
            send(client, topic=row.topic, body=body)
        wait_for(client, lambda: len(client.received) >= 6, "first deliveries")
        row.kill(sent_back=6)
        for body in bodies[6:]:
            send(client, topic=row.topic, body=body)
        wait_for(client, lambda: all(client.bodies("reader").count(body) >= 2 for body in bodies), "second deliveries")
        close(row, client, "reader")
        again = [one for one in client.received if one["reconsume_times"]]
        assert {one["topic"] for one in again} == {row.topic}, "they come with the topic that they were sent to"
        assert {one["body"] for one in again} == set(bodies)
        retries, copies = row.retries(), len(row.stored(retry_topic(row.group)))
        assert retries.succeeded <= copies <= retries.asked, f"{copies} copies of {retries}"
        if not row.kills:
            # A client whose answer is late asks again, so on a slow machine a message is copied twice.
            assert len(client.bodies("reader")) <= len(bodies) + copies


def hopeless_messages_become_dead_letters(row: Row, messages: int = 4) -> None:
    """Check that a message that fails 16 retries becomes a dead letter, and that others are delivered once."""
    hopeless = [f"hopeless-{number}" for number in range(messages)]
    with row.reading(fails=dict.fromkeys(hopeless, ALWAYS)) as client:
        sent = {body: send(client, topic=row.topic, body=body) for body in [*hopeless, "good"]}
        wait_for(client, lambda: all(client.bodies("reader").count(body) >= 5 for body in hopeless), "retries")
        row.kill(sent_back=5 * messages)
        letters: list[ReceivedMessage] = []

        def all_dead() -> bool:
            letters[:] = row.stored(dead_letter_topic(row.group))
            return {*hopeless} <= {*bodies_of(letters)}

        deliveries = MAX_RETRIES + 1
        expected = Counter(dict.fromkeys(hopeless, deliveries))
        wait_for(client, lambda: Counter(client.bodies("reader")) >= expected, "all retries")
        assert wait_until(all_dead, RETRY_SECONDS), f"dead letters: {bodies_of(letters)}, expected: {hopeless}"
        close(row, client, "reader")
        origins = {body: message for message in row.stored() for body in bodies_of([message])}
        for letter, body in zip(letters, bodies_of(letters), strict=True):
            assert letter.topic == row.topic
            assert letter.reconsume_times > MAX_RETRIES
            assert letter.properties["ORIGIN_MESSAGE_ID"] == origins[body].offset_message_id, sent[body]
        if not row.kills:
            assert Counter(client.bodies("reader")) == {**dict.fromkeys(hopeless, deliveries), "good": 1}
            assert sorted(bodies_of(letters)) == hopeless
            assert {letter.reconsume_times for letter in letters} == {deliveries}


def queues_are_consumed_in_order(row: Row, *, suspends: bool = True) -> None:
    """Check that two ordered members get each queue's messages in order, and never share a queue.

    A failed message comes again before the next one. With `suspends` their listeners fail for some messages.
    """
    shards, each = 4, 15
    create_topic(row.cluster, row.topic, queues=shards)
    with row.told():
        members = [row.client(), row.client()]
        fails = {f"{shard}-{number}": 1 for shard in range(shards) for number in (2, 12) if suspends}
        for number, member in enumerate(members):
            member.call("push", name=f"member-{number}", group=row.group, topic=row.topic, orderly=True, fails=fails)
        assert wait_until(lambda: owners(row.tap, row.topic) == 2, RETRY_SECONDS), "each member owns queues"
        bodies = [(f"{shard}-{number}", shard) for number in range(each) for shard in range(shards)]
        for body, shard in row.around_the_kill(bodies):
            send(members[0], "send_orderly", topic=row.topic, body=body, shard=shard)

        def received() -> list[tuple[float, str]]:
            return sorted((one["at"], one["body"]) for member in members for one in member.received)

        wait_for(members[0], lambda: {body for _, body in received()} == {body for body, _ in bodies}, "all messages")
        for number, member in enumerate(members):
            close(row, member, f"member-{number}")
        for shard in range(shards):
            got = [int(body.partition("-")[2]) for _, body in received() if body.startswith(f"{shard}-")]
            assert list(dict.fromkeys(got)) == list(range(each)), f"first deliveries of shard {shard}: {got}"
            if suspends:
                again = [at for at, number in enumerate(got) if number == 2][1:]
                assert again, f"{shard}-2 failed once: {got}"
                assert again[0] < got.index(3), f"3 came before the failed 2: {got}"
        assert_one_owner(row.tap)
        assert_stored_as_often_as_sent(row)


def delayed_messages_come_when_they_are_due(
    row: Row, ways: Mapping[str, Callable[[], Mapping[str, object]]] = WAYS
) -> None:
    """Check that delayed messages, requested in each way that a client has, come once and not before they are due."""
    with row.reading() as client:
        bodies = [f"{way} {number}" for number in range(4) for way in ways]
        for body in row.around_the_kill(bodies):
            send(client, topic=row.topic, body=body, **ways[body.partition(" ")[0]]())
        client.wait_for(
            lambda: {*bodies} <= {*client.bodies("reader")}, "messages that were due", timeout=PATIENCE_SECONDS
        )
        close(row, client, "reader")
        assert_stored_as_often_as_sent(row)
        for message in row.stored():
            assert message.properties[REAL_TOPIC] == row.topic, f"{message.body!r} has waited"
            assert message.stored_timestamp_ms >= int(message.properties[TIMER_OUT_MS]), f"{message.body!r} is early"
        if not row.kills:
            assert Counter(client.bodies("reader")) == dict.fromkeys(bodies, 1)


def transactions_end_once(row: Row) -> None:
    """Check that messages of transactions are seen exactly if they are committed.

    The commit may come directly, or as the answer to a check-back.
    """
    ends = ("commit", "rollback", "unknown-commit", "unknown-rollback")
    with row.reading() as client:
        bodies = [f"{end} {number}" for number in range(4) for end in ends]
        for body in row.around_the_kill(bodies):
            send(client, "transaction", topic=row.topic, body=body, group=f"{row.group}-producers")
        committed = {body for body in bodies if "commit" in body}
        wait_for(client, lambda: committed <= {*client.bodies("reader")}, "commits")
        asked = {body for body in bodies if body.startswith("unknown")}
        wait_for(client, lambda: asked <= client.checked, "check-backs of what is unknown")
        assert wait_until(lambda: _no_half_waits(row, asked), RETRY_SECONDS), "all halves end"
        close(row, client, "reader")
        assert {*client.bodies("reader")} == committed
        assert_stored_as_often_as_sent(row, committed)


def _no_half_waits(row: Row, asked: Collection[str]) -> bool:
    """Return whether every transaction that was checked back has been ended (37)."""
    ended = {one.ext["transactionId"] for one in row.tap.exchanges(RequestCode.END_TRANSACTION) if _ends(one)}
    checks = row.tap.exchanges(RequestCode.CHECK_TRANSACTION_STATE)
    return len(checks) >= len(asked) and {one.ext["transactionId"] for one in checks} <= ended


def _ends(one: Exchange) -> bool:
    return one.ext["commitOrRollback"] != "0"


def wait_for(client: StockClient, condition: Callable[[], bool], otherwise: str) -> None:
    """Wait for a client's output as long as retries may take."""
    client.wait_for(condition, otherwise, timeout=RETRY_SECONDS)


def send(client: StockClient, call: str = "send", /, **message: object) -> object:
    """Send until it is acknowledged, as applications do, also with a client that gives up within seconds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return client.call(call, **message)
        except StockClientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RESEND_PAUSE_SECONDS)


def close(row: Row, client: StockClient, name: str) -> None:
    """Stop a consumer. With a dead leader its unregistration fails, and the C++ client may abort."""
    try:
        client.call("close_push", name=name)
    except StockClientError as error:
        if not row.kills and CPP_ABORTS not in str(error):
            raise


def assert_stored_as_often_as_sent(row: Row, bodies: Collection[str] | None = None) -> None:
    """Check that each body is stored for every acknowledged send of it, and never more often than it was sent.

    `bodies` are those that may be stored at all, by default all that were sent.
    """
    copies = Counter(bodies_of(row.stored()))
    for body, (asked, succeeded) in row.sends().items():
        least, most = (succeeded, asked) if bodies is None or body in bodies else (0, 0)
        assert least <= copies[body] <= most, f"{body!r} was sent {asked} times, {succeeded} acknowledged"
    assert copies.keys() <= row.sends().keys()


def owners(tap: Wiretap, topic: str) -> int:
    """Return the number of clients that own queues of a topic, by the last lock of each queue that was granted."""
    last: dict[int, str] = {}
    for one in tap.exchanges(RequestCode.LOCK_BATCH_MQ):
        if one.answer == ResponseCode.SUCCESS:
            granted = [queue for queue in json.loads(one.answer_body)["lockOKMQSet"] if queue["topic"] == topic]
            last |= {queue["queueId"]: json.loads(one.body)["clientId"] for queue in granted}
    return len({*last.values()})


def assert_one_owner(tap: Wiretap) -> None:
    """Check that no client was granted a queue's lock while another client relied on its own.

    A client relies on its lock from the answer on, until it sends the release or leaves its group. The answer to an
    early request may come late, after a release that the client has sent meanwhile.
    """
    locks = [one for one in tap.exchanges(RequestCode.LOCK_BATCH_MQ) if one.answer == ResponseCode.SUCCESS]
    moments = [(one.answered_at, one) for one in locks]
    releases = tap.exchanges(RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT)
    moments += [(one.asked_at, one) for one in releases]
    owners: dict[tuple[str, int], tuple[str, float]] = {}
    gave_up_at: dict[tuple[str, int, str], float] = {}
    for at, one in sorted(moments, key=lambda moment: moment[0]):
        if one.code == RequestCode.UNREGISTER_CLIENT:
            left = one.ext["clientID"]
            owners = {key: owner for key, owner in owners.items() if owner[0] != left}
            continue
        asked = json.loads(one.body)
        client = asked["clientId"]
        if one.code == RequestCode.UNLOCK_BATCH_MQ:
            for queue in asked["mqSet"]:
                key = queue["topic"], queue["queueId"]
                gave_up_at[*key, client] = at
                if key in owners and owners[key][0] == client:
                    del owners[key]
            continue
        for queue in json.loads(one.answer_body)["lockOKMQSet"]:
            key = queue["topic"], queue["queueId"]
            if one.asked_at < gave_up_at.get((*key, client), 0.0):
                continue  # released while the request was under way
            owner, since = owners.get(key, (client, 0.0))
            assert owner == client or at > since + BELIEF_SECONDS, f"{one}, expected: {owner} owns"
            owners[key] = client, one.asked_at


def topic_of(one: Exchange) -> str:
    """Return the topic of a send or a pull."""
    return one.ext.get("topic") or one.ext.get("b", "")


def _bodies(one: Exchange, topic: str) -> Iterator[str]:
    """Yield the bodies that a send to a topic carries."""
    if topic_of(one) != topic:
        return
    batch = one.code == RequestCode.SEND_BATCH_MESSAGE or one.ext.get("batch") in ("1", "true")
    for body in [part[1] for part in split_batch(one.body)] if batch else [one.body]:
        yield body.decode()


def _attempts(found: Iterator[tuple[str, Exchange]]) -> dict[str, Attempts]:
    asked: Counter[str] = Counter()
    succeeded: Counter[str] = Counter()
    for key, one in found:
        asked[key] += 1
        succeeded[key] += one.answer == ResponseCode.SUCCESS
    return {key: Attempts(asked[key], succeeded[key]) for key in asked}
