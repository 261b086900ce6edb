"""Rows about ways of consuming that other vendors' clients must pass. See `rows`.

A client without shared broadcast groups or without namespaces skips the rows about them.
"""

from __future__ import annotations

import json
from collections import Counter

import rows
from cluster_checks import bodies_of, create_topic, wait_until
from rows import RETRY_SECONDS, Row

from dledger_client import SyncConsumer, SyncProducer
from dledger_remoting.codes import RequestCode
from dledger_remoting.topics import retry_topic

QUEUES = 4
SHARED = 20
"""Number of messages that two members of a group share."""
NAMESPACE = "tenant"


def every_member_of_a_broadcast_group_gets_everything(row: Row) -> None:
    """Check that both members of a broadcast group get each message, and that no broker learns their offsets."""
    bodies = [f"all {number}" for number in range(20)]
    create_topic(row.cluster, row.topic, queues=QUEUES)
    with row.told():
        members = [row.client(), row.client()]
        for number, member in enumerate(members):
            member.call("push", name=f"member-{number}", group=row.group, topic=row.topic, broadcast=True)
        # A consumer that begins at the end misses messages that were sent before it asked for the end.
        readers = len(members) * len(row.cluster.groups)
        assert wait_until(lambda: _pulls_of_each_queue(row) >= readers, RETRY_SECONDS), "members that read all queues"
        for body in row.around_the_kill(bodies):
            rows.send(members[0], topic=row.topic, body=body)
        for number, member in enumerate(members):
            rows.wait_for(member, lambda it=member: {*bodies} <= {one["body"] for one in it.received}, "everything")
            rows.close(row, member, f"member-{number}")
        assert row.tap.exchanges(RequestCode.UPDATE_CONSUMER_OFFSET) == [], "offsets are the members' own"
        rows.assert_stored_as_often_as_sent(row)


def _pulls_of_each_queue(row: Row) -> int:
    """Return the smallest number of pulls among the queue numbers of the row's topic."""
    pulls = Counter(
        one.ext["queueId"] for one in row.tap.exchanges(RequestCode.PULL_MESSAGE) if one.ext["topic"] == row.topic
    )
    return min(pulls.values()) if len(pulls) == QUEUES else 0


def names_and_retries_are_within_a_namespace(row: Row, *, shows_plain_names: bool = True) -> None:
    """Check that a foreign client and ours in one namespace share a topic, and that its retries stay in the namespace.

    With `shows_plain_names` the client removes the namespace from names, and reports it with each message.
    """
    full_topic, full_group = f"{NAMESPACE}%{row.topic}", f"{NAMESPACE}%{row.group}"
    create_topic(row.cluster, full_topic)
    bodies = [f"within {number}" for number in range(10)]
    with row.told():
        client = row.client()
        client.call("push", name="reader", group=row.group, topic=row.topic, namespace=NAMESPACE, fails={bodies[0]: 1})
        with SyncProducer(row.cluster.namesrv, namespace=NAMESPACE) as ours:
            for position, body in enumerate(row.around_the_kill(bodies)):
                if position % 2:
                    ours.send(row.topic, body.encode())
                else:
                    rows.send(client, "send_within", topic=row.topic, body=body, namespace=NAMESPACE)
        expected = Counter([*bodies, bodies[0]])
        rows.wait_for(client, lambda: Counter(client.bodies("reader")) >= expected, "all messages, the first one twice")
        rows.close(row, client, "reader")
        assert {one["topic"] for one in client.received} == {row.topic if shows_plain_names else full_topic}
        stored = row.stored(full_topic)
        assert {*bodies_of(stored)} == {*bodies}
        if shows_plain_names:
            assert {message.properties["INSTANCE_ID"] for message in stored} == {NAMESPACE}
        assert row.stored(retry_topic(full_group)), "its retries are the namespace's, too"
        with SyncConsumer(row.cluster.namesrv, "ours", row.topic, namespace=NAMESPACE) as reader:
            found = set()
            while found < {*bodies}:
                for message in reader.receive(timeout=10):
                    assert message.topic == row.topic
                    found.add(message.body.decode())
                    message.ack()


def members_of_both_kinds_share_the_queues_of_a_group(row: Row) -> None:
    """Check that a foreign member and one of ours each get half of the queues, and that all is read."""
    create_topic(row.cluster, row.topic, queues=QUEUES)
    half = QUEUES * len(row.cluster.groups) // 2
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
                return len(mine) == half and bool(client.received) and bool(got)

            assert wait_until(both_read, RETRY_SECONDS), "each has half of the queues"
            # Earlier messages may have been skipped: a member that finds no committed offset begins at the end.
            everything = {json.dumps(number) for number in range(sent, sent + SHARED)}
            for place, body in enumerate(sorted(everything)):
                if place == SHARED // 2:
                    row.kill()
                rows.send(client, topic=row.topic, body=body)

            def all_read() -> bool:
                for message in ours.receive(timeout=0.05):
                    got.add(message.body.decode())
                    message.ack()
                return everything <= got | {*client.bodies("theirs")}

            assert wait_until(all_read, RETRY_SECONDS), "nothing is left unread"
        rows.close(row, client, "theirs")
