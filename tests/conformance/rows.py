"""Rows of what applications rely on beyond plain sends, that clients of others have to come through; see `stories` too.

A row goes through a wiretap: every answer but the expected one fails it, and is told. With `kills` the leader is killed
in the row's middle and comes back at its end: nothing may be lost then, and a message is stored as often as sends of it
may have succeeded.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

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
"""Configuration of a cluster for these rows: RocketMQ's last retry is hours away, and it has a region.

After a kill a producer is back, to be asked, when it has looked the route up.
"""

MAX_RETRIES = 16
ALWAYS = 1_000
BELIEF_SECONDS = 30.0
"""How long an owner believes in a lock that it was granted."""
RETRY_SECONDS = 90.0
"""A client finds the queue of its retries when it looks the route up, then each is a second away."""
RESEND_PAUSE_SECONDS = 0.2
CPP_ABORTS = "boost::thread_interrupted"
"""What the C++ client dies of now and then while it stops a consumer (docs/compatibility.md)."""

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
PULL_ANSWERS = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
}
"""Java's client pulls queues before it heartbeats its subscription (24), or the new version of that (25)."""
OTHER_ANSWERS: dict[int, set[ResponseCode]] = {
    RequestCode.PULL_MESSAGE: PULL_ANSWERS,
    RequestCode.LITE_PULL_MESSAGE: PULL_ANSWERS,
    RequestCode.QUERY_CONSUMER_OFFSET: {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND},
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR},
}
"""Of requests that are not simply answered 0; 38 is answered 1 while a group has no member."""
POP_ANSWERS = {ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT}
OTHER_ANSWERS |= dict.fromkeys((RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION), POP_ANSWERS)
UNSURE = {ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE}
"""What else a request may be answered while a group is without a leader: clients try these again."""


class Attempts(NamedTuple):
    """How often something was asked for, and how often that was answered 0."""

    asked: int
    succeeded: int


class Row:
    """A cluster behind a wiretap, with a topic and a group of the row's own.

    A client that `asks_once` gives a message up, for as long as it runs, whose sending back nobody answers.
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
        """A client in a process of its own, which believes the tap to be the cluster."""
        return self._start(self.tap.namesrv)

    def kill(self, *, sent_back: int = 0) -> None:
        """The row's middle: the leader is killed, if this row is about that.

        Where the client asks once, it is killed when at least so many messages are sent back and all are answered.
        """
        if self.kills:
            if self._asks_once:
                assert wait_until(lambda: self._are_answered(at_least=sent_back), RETRY_SECONDS), "answers to retries"
            self._killed = self.cluster.kill_leader()

    def _are_answered(self, *, at_least: int) -> bool:
        asked = self.tap.exchanges(RequestCode.CONSUMER_SEND_MSG_BACK)
        return len(asked) >= at_least and all(one.answer is not None for one in asked)

    def expected(self, one: Exchange) -> Collection[int]:
        """Codes with which a request may be answered."""
        answers = OTHER_ANSWERS.get(one.code, {ResponseCode.SUCCESS})
        return answers | UNSURE if self._killed else answers

    @contextmanager
    def told(self) -> Iterator[None]:
        """Fail for surprising answers, at the end at the latest; the killed node is back behind it."""
        try:
            with self.tap.told(self.expected):
                yield
                assert not self.tap.surprises(self.expected)
        finally:
            if self._killed is not None:
                self.cluster.restart(self._killed)
                self.cluster.wait_ready()

    def sends(self) -> dict[str, Attempts]:
        """Sends of each body to the row's topic."""
        return _attempts((body, one) for one in self.tap.exchanges(*SENDS) for body in _bodies(one, self.topic))

    def retries(self) -> Attempts:
        """Retries that were asked for: sent back, or sent to the retry topic by a client that could not send back."""
        retried = [*self.tap.exchanges(RequestCode.CONSUMER_SEND_MSG_BACK)]
        retried += [one for one in self.tap.exchanges(*SENDS) if topic_of(one) == retry_topic(self.group)]
        return _attempts(("", one) for one in retried).get("", Attempts(0, 0))

    def stored(self, topic: str | None = None) -> list[ReceivedMessage]:
        """What a topic holds now, the row's own by default; nothing if it does not exist."""
        try:
            return stored_messages(self.cluster, topic or self.topic)
        except (NoRouteError, TimeoutError):
            return []


def failed_messages_come_again(row: Row) -> None:
    """What a listener cannot handle comes again after the first level of retries; one that failed once then is done."""
    bodies = [f"again-{number}" for number in range(12)]
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        client.call("push", name="reader", group=row.group, topic=row.topic, fails=dict.fromkeys(bodies, 1))
        for body in bodies[:6]:
            send(client, topic=row.topic, body=body)
        client.wait_for(lambda: len(client.received) >= 6, "first deliveries", timeout=RETRY_SECONDS)
        row.kill(sent_back=6)
        for body in bodies[6:]:
            send(client, topic=row.topic, body=body)
        client.wait_for(
            lambda: all(client.bodies("reader").count(body) >= 2 for body in bodies),
            "second deliveries",
            timeout=RETRY_SECONDS,
        )
        close(row, client, "reader")
        again = [one for one in client.received if one["reconsume_times"]]
        assert {one["topic"] for one in again} == {row.topic}, "they come with the topic that they were sent to"
        assert {one["body"] for one in again} == set(bodies)
        retries, copies = row.retries(), len(row.stored(retry_topic(row.group)))
        assert retries.succeeded <= copies <= retries.asked, f"{copies} copies of {retries}"
        if not row.kills:
            # A client that finds an answer late asks again: on a slow machine a message is copied twice, as it asked.
            assert len(client.bodies("reader")) <= len(bodies) + copies


def hopeless_messages_become_dead_letters(row: Row, messages: int = 4) -> None:
    """What fails 16 retries goes to the group's dead letter topic; what lies beside it is delivered once."""
    hopeless = [f"hopeless-{number}" for number in range(messages)]
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        client.call("push", name="reader", group=row.group, topic=row.topic, fails=dict.fromkeys(hopeless, ALWAYS))
        sent = {body: send(client, topic=row.topic, body=body) for body in [*hopeless, "good"]}
        client.wait_for(
            lambda: all(client.bodies("reader").count(body) >= 5 for body in hopeless), "retries", timeout=RETRY_SECONDS
        )
        row.kill(sent_back=5 * messages)
        letters: list[ReceivedMessage] = []

        def all_dead() -> bool:
            letters[:] = row.stored(dead_letter_topic(row.group))
            return {*hopeless} <= {*bodies_of(letters)}

        deliveries = MAX_RETRIES + 1
        client.wait_for(
            lambda: all(client.bodies("reader").count(body) >= deliveries for body in hopeless),
            "all retries",
            timeout=RETRY_SECONDS,
        )
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
    """Two ordered members get each queue's messages in order, never both one queue; what failed comes again first.

    With `suspends` their listeners fail for some messages.
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
        for position, (body, shard) in enumerate(bodies):
            if position == len(bodies) // 2:
                row.kill()
            send(members[0], "send_orderly", topic=row.topic, body=body, shard=shard)

        def received() -> list[tuple[float, str]]:
            return sorted((one["at"], one["body"]) for member in members for one in member.received)

        members[0].wait_for(
            lambda: {body for _, body in received()} == {body for body, _ in bodies},
            "all messages",
            timeout=RETRY_SECONDS,
        )
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


def delayed_messages_come_when_they_are_due(row: Row, ways: Mapping[str, Callable[[], Mapping[str, object]]]) -> None:
    """Messages with a delay, asked for in each way that a client has, come once, and not before they are due."""
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        client.call("push", name="reader", group=row.group, topic=row.topic)
        bodies = [f"{way} {number}" for number in range(4) for way in ways]
        for position, body in enumerate(bodies):
            if position == len(bodies) // 2:
                row.kill()
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
    """Messages of transactions are seen once they are committed, be it when their producer is asked; else never."""
    create_topic(row.cluster, row.topic)
    ends = ("commit", "rollback", "unknown-commit", "unknown-rollback")
    with row.told():
        client = row.client()
        client.call("push", name="reader", group=row.group, topic=row.topic)
        bodies = [f"{end} {number}" for number in range(4) for end in ends]
        for position, body in enumerate(bodies):
            if position == len(bodies) // 2:
                row.kill()
            send(client, "transaction", topic=row.topic, body=body, group=f"{row.group}-producers")
        committed = {body for body in bodies if "commit" in body}
        client.wait_for(lambda: committed <= {*client.bodies("reader")}, "commits", timeout=RETRY_SECONDS)
        asked = {body for body in bodies if body.startswith("unknown")}
        client.wait_for(lambda: asked <= client.checked, "check-backs of what is unknown", timeout=RETRY_SECONDS)
        assert wait_until(lambda: _no_half_waits(row, asked), RETRY_SECONDS), "all halves end"
        close(row, client, "reader")
        assert {*client.bodies("reader")} == committed
        assert_stored_as_often_as_sent(row, committed)


def _no_half_waits(row: Row, asked: Collection[str]) -> bool:
    """Whether the last check-back of each body was followed by an end (37) of its half, or is none's any more."""
    ended = {one.ext["transactionId"] for one in row.tap.exchanges(RequestCode.END_TRANSACTION) if _ends(one)}
    checks = row.tap.exchanges(RequestCode.CHECK_TRANSACTION_STATE)
    return len(checks) >= len(asked) and {one.ext["transactionId"] for one in checks} <= ended


def _ends(one: Exchange) -> bool:
    return one.ext["commitOrRollback"] != "0"


def send(client: StockClient, call: str = "send", /, **message: object) -> object:
    """Send until it is acknowledged, as applications do; a client that gives up within seconds is told to go on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return client.call(call, **message)
        except StockClientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RESEND_PAUSE_SECONDS)


def close(row: Row, client: StockClient, name: str) -> None:
    """Stop a consumer; a dead leader that it knows cannot be told that it leaves, and the C++ client may abort."""
    try:
        client.call("close_push", name=name)
    except StockClientError as error:
        if not row.kills and CPP_ABORTS not in str(error):
            raise


def assert_stored_as_often_as_sent(row: Row, bodies: Collection[str] | None = None) -> None:
    """Each body is stored for every send of it that was acknowledged, and for none that was not asked for.

    `bodies` are those that are to be stored at all; all that were sent by default.
    """
    copies = Counter(bodies_of(row.stored()))
    for body, (asked, succeeded) in row.sends().items():
        least, most = (succeeded, asked) if bodies is None or body in bodies else (0, 0)
        assert least <= copies[body] <= most, f"{body!r} was sent {asked} times, {succeeded} acknowledged"
    assert copies.keys() <= row.sends().keys()


def owners(tap: Wiretap, topic: str) -> int:
    """How many clients own queues of a topic, by the last lock of each queue that was granted."""
    last: dict[int, str] = {}
    for one in tap.exchanges(RequestCode.LOCK_BATCH_MQ):
        if one.answer == ResponseCode.SUCCESS:
            granted = [queue for queue in json.loads(one.answer_body)["lockOKMQSet"] if queue["topic"] == topic]
            last |= {queue["queueId"]: json.loads(one.body)["clientId"] for queue in granted}
    return len({*last.values()})


def assert_one_owner(tap: Wiretap) -> None:
    """No client was granted a queue's lock while another one believed in its own.

    A client believes in it from the answer on, until it sends that it gives it up, or leaves its group: one that asks
    early may be answered late, behind the release that somebody else sends meanwhile.
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
                continue  # given up while it was asked for
            owner, since = owners.get(key, (client, 0.0))
            assert owner == client or at > since + BELIEF_SECONDS, f"{one}, expected: {owner} owns"
            owners[key] = client, one.asked_at


def topic_of(one: Exchange) -> str:
    """The topic of a send or a pull."""
    return one.ext.get("topic") or one.ext.get("b", "")


def _bodies(one: Exchange, topic: str) -> Iterator[str]:
    """Bodies that a send to a topic carries."""
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
