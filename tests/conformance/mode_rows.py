"""Ways of consuming as rows that clients of others have to come through; see `rows`.

A client that shares no group in broadcasting, or has no namespaces, has fewer of them.
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
"""Messages that two members of a group read between them."""
NAMESPACE = "tenant"


def every_member_of_a_broadcast_group_gets_everything(row: Row) -> None:
    """Both members of a broadcast group get each message; what they have read is told to no broker."""
    bodies = [f"all {number}" for number in range(20)]
    create_topic(row.cluster, row.topic, queues=QUEUES)
    with row.told():
        members = [row.client(), row.client()]
        for number, member in enumerate(members):
            member.call("push", name=f"member-{number}", group=row.group, topic=row.topic, broadcast=True)
        # One that begins at the end would not get what is sent before it has looked where that is.
        readers = len(members) * len(row.cluster.groups)
        assert wait_until(lambda: _pulls_of_each_queue(row) >= readers, RETRY_SECONDS), "members that read all queues"
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


def _pulls_of_each_queue(row: Row) -> int:
    """How many pulls each number of a queue of the row's topic has at the least."""
    pulls = Counter(
        one.ext["queueId"] for one in row.tap.exchanges(RequestCode.PULL_MESSAGE) if one.ext["topic"] == row.topic
    )
    return min(pulls.values()) if len(pulls) == QUEUES else 0


def names_and_retries_are_within_a_namespace(row: Row, *, shows_plain_names: bool = True) -> None:
    """A client and ours in one namespace have one topic, and its retries are the namespace's, too.

    With `shows_plain_names` the client takes the namespace off again, and says in each message which one it is.
    """
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
    """One member of the client's kind and one of ours have half of a group's queues each, and all is read."""
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
            # What came before may have been passed over: who finds no offset, and then asks for the end, begins there.
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
