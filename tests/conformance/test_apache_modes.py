"""Apache RocketMQ's own clients, unmodified, broadcast, pull and use namespaces, also when the leader is killed.

`make test-clients` runs this; it needs a JDK and Maven.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest
import rows
from cluster_checks import bodies_of, create_topic
from rows import RETRY_SECONDS, Row
from stock_clients import JAVA_CLIENTS
from wiretap import Wiretap

from dledger_client import SyncAdmin, SyncConsumer, SyncProducer
from dledger_remoting.codes import RequestCode
from dledger_remoting.topics import retry_topic

pytestmark = pytest.mark.parametrize("row", [False, True], ids=["undisturbed", "leader killed"], indirect=True)
ONLY_JAVA = pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)
NAMESPACE = "tenant"
PULLED = 20
_NUMBERS = count()


@pytest.fixture
def row(quick_group, apache, request) -> Iterator[Row]:
    with Wiretap(quick_group) as tap:
        yield Row(quick_group, tap, apache, f"ApacheMode{next(_NUMBERS)}", kills=request.param)


def test_every_member_of_a_broadcast_group_gets_everything(row):
    bodies = [f"all {number}" for number in range(20)]
    create_topic(row.cluster, row.topic)
    with row.told():
        members = [row.client(), row.client()]
        for number, member in enumerate(members):
            member.call("push", name=f"member-{number}", group=row.group, topic=row.topic, broadcast=True)
        for position, body in enumerate(bodies):
            if position == len(bodies) // 2:
                row.kill()
            rows.send(members[0], topic=row.topic, body=body)
        for number, member in enumerate(members):
            member.wait_for(
                lambda member=member, number=number: {*bodies} <= {*member.bodies(f"member-{number}")},
                f"everything at member {number}",
                timeout=RETRY_SECONDS,
            )
            rows.close(row, member, f"member-{number}")
        assert row.tap.exchanges(RequestCode.UPDATE_CONSUMER_OFFSET) == [], "offsets are the members' own"
        rows.assert_stored_as_often_as_sent(row)


def committed(row: Row) -> int:
    """How many messages of the row's topic its group has committed."""
    with SyncAdmin(row.cluster.namesrv) as admin:
        return sum(queue.committed or 0 for queue in admin.offsets(row.group, row.topic))


@ONLY_JAVA
def test_a_lite_pull_consumer_goes_on_where_it_committed(row):
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        for first in (0, PULLED):
            bodies = [f"pulled {number}" for number in range(first, first + PULLED)]
            for body in bodies:
                rows.send(client, topic=row.topic, body=body)
            found: list[str] = []
            while missing := {*bodies} - {*found}:
                found += client.call(
                    "lite_pull", group=row.group, topic=row.topic, count=len(missing), timeout=RETRY_SECONDS
                )
            if not row.kills:
                assert sorted(found) == sorted(bodies)
            assert {*found} == {*bodies}, "what was committed does not come again"
            if first == 0:
                # It commits one-way: what the leader takes with it before it was stored is read again.
                assert rows.wait_until(lambda: committed(row) == PULLED, RETRY_SECONDS)
                row.kill()
        rows.assert_stored_as_often_as_sent(row)


@ONLY_JAVA
def test_names_and_retries_are_within_a_namespace_and_ours_are_the_same(row):
    full_topic, full_group = f"{NAMESPACE}%{row.topic}", f"{NAMESPACE}%{row.group}"
    create_topic(row.cluster, full_topic)
    bodies = [f"within {number}" for number in range(10)]
    with row.told():
        client = row.client()
        client.call("push", name="reader", group=row.group, topic=row.topic, namespace=NAMESPACE, fails={bodies[0]: 1})
        with SyncProducer(row.cluster.namesrv, namespace=NAMESPACE) as ours:
            for position, body in enumerate(bodies):
                if position == len(bodies) // 2:
                    row.kill()
                if position % 2:
                    ours.send(row.topic, body.encode())
                else:
                    rows.send(client, "send_within", topic=row.topic, body=body, namespace=NAMESPACE)
        client.wait_for(
            lambda: {*bodies} <= {*client.bodies("reader")} and client.bodies("reader").count(bodies[0]) >= 2,
            "all messages, the first one twice",
            timeout=RETRY_SECONDS,
        )
        rows.close(row, client, "reader")
        assert {one["topic"] for one in client.received} == {row.topic}
        stored = row.stored(full_topic)
        assert {*bodies_of(stored)} == {*bodies}
        assert {message.properties["INSTANCE_ID"] for message in stored} == {NAMESPACE}
        assert row.stored(retry_topic(full_group)), "its retries are the namespace's, too"
        with SyncConsumer(row.cluster.namesrv, "ours", row.topic, namespace=NAMESPACE) as reader:
            found = set()
            while found < {*bodies}:
                for message in reader.receive(timeout=10):
                    assert message.topic == row.topic
                    found.add(message.body.decode())
                    message.ack()


@ONLY_JAVA
def test_members_of_both_kinds_share_the_queues_of_a_group(row):
    create_topic(row.cluster, row.topic, queues=4)
    with row.told():
        client = row.client()
        client.call("push", name="theirs", group=row.group, topic=row.topic)
        with SyncConsumer(row.cluster.namesrv, row.group, row.topic) as ours:
            got: set[str] = set()
            sent = 0

            def both_read() -> bool:
                nonlocal sent
                rows.send(client, topic=row.topic, body=json.dumps(sent))
                sent += 1
                for message in ours.receive(timeout=0.05):
                    got.add(message.body.decode())
                    message.ack()
                mine = {queue for queue in ours.assignment if queue.topic == row.topic}
                return len(mine) == 2 and bool(client.received) and bool(got)

            assert rows.wait_until(both_read, RETRY_SECONDS), "each has two of the four queues"
            row.kill()
            everything = {json.dumps(number) for number in range(sent)}

            def all_read() -> bool:
                for message in ours.receive(timeout=0.05):
                    got.add(message.body.decode())
                    message.ack()
                return everything <= got | {*client.bodies("theirs")}

            assert rows.wait_until(all_read, RETRY_SECONDS), "nothing is left unread"
        rows.close(row, client, "theirs")
