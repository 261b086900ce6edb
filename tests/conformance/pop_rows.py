"""Rows about consumers that pop, have their queues assigned by brokers, or filter. See `rows`."""

from __future__ import annotations

import json
from collections import Counter

import rows
from cluster_checks import create_topic, wait_until
from rows import RETRY_SECONDS, Row, topic_of

from dledger_client import SyncProducer
from dledger_remoting.codes import RequestCode, ResponseCode
from tests.integration.bare_client import BareClient


def failed_messages_are_popped_again(row: Row) -> None:
    """Check that members that pop get each message once, and that a failed message comes again after 10 s.

    The broker assigns their queues, and tells the members to pop.
    """
    bodies = [f"popped-{number}" for number in range(24)]
    fails, later = bodies[:4], bodies[12:]
    create_topic(row.cluster, row.topic)
    let_group_pop(row)
    with row.told():
        members = [row.client(), row.client()]
        mine = {"group": row.group, "topic": row.topic, "assigned": True}
        members[0].call("push", name="member-0", fails=dict.fromkeys(fails, 1), **mine)
        for body in bodies[:12]:
            rows.send(members[0], topic=row.topic, body=body)
        members[0].wait_for(lambda: {*bodies[:12]} <= {*members[0].bodies("member-0")}, "first deliveries")
        row.kill()
        members[1].call("push", name="member-1", **mine)
        for body in later:
            rows.send(members[0], topic=row.topic, body=body)

        def received() -> Counter[str]:
            return Counter(members[0].bodies("member-0") + members[1].bodies("member-1"))

        def are_done() -> bool:
            return received().keys() >= {*bodies} and all(received()[body] > 1 for body in fails)

        assert wait_until(are_done, RETRY_SECONDS), f"deliveries: {received()}"
        for number, member in enumerate(members):
            rows.close(row, member, f"member-{number}")
        again = [one for member in members for one in member.received if one["reconsume_times"]]
        assert {one["topic"] for one in again} == {row.topic}, "they come with the topic that they were sent to"
        assert {one["body"] for one in again} >= {*fails}
        pops = [one for one in row.tap.exchanges(RequestCode.POP_MESSAGE) if one.answer == ResponseCode.SUCCESS]
        assert {one.ext["queueId"] for one in pops} == {"-1"}
        pulled = [one for one in row.tap.exchanges(RequestCode.PULL_MESSAGE) if topic_of(one) == row.topic]
        assert not pulled, "what is popped is not pulled, too"
        if not row.kills:
            assert received() == Counter(bodies) + Counter(fails)
            assert len(row.tap.exchanges(RequestCode.ACK_MESSAGE)) == len(bodies)


def assigned_queues_are_pulled(row: Row) -> None:
    """Check that members with queues assigned by the broker share them, and that each message is received."""
    bodies = [f"pulled-{number}" for number in range(24)]
    create_topic(row.cluster, row.topic)
    with row.told():
        members = [row.client(), row.client()]
        for number, member in enumerate(members):
            mine = {"name": f"member-{number}", "group": row.group, "topic": row.topic, "assigned": True}
            member.call("push", **mine)

        def received() -> Counter[str]:
            return Counter(members[0].bodies("member-0") + members[1].bodies("member-1"))

        for body in row.around_the_kill(bodies):
            rows.send(members[0], topic=row.topic, body=body)
        assert wait_until(lambda: received().keys() >= {*bodies}, RETRY_SECONDS), f"deliveries: {received()}"
        for number, member in enumerate(members):
            rows.close(row, member, f"member-{number}")
        assert row.tap.exchanges(RequestCode.QUERY_ASSIGNMENT)
        assert not row.tap.exchanges(RequestCode.POP_MESSAGE)


def an_expression_in_sql_filters(row: Row, *, is_popped: bool) -> None:
    """Check that a member gets exactly the messages that its SQL expression matches. With `is_popped` it pops."""
    wanted = {str(number) for number in range(24) if number % 2 and 4 <= number <= 20}
    create_topic(row.cluster, row.topic)
    if is_popped:
        let_group_pop(row)
    with row.told(), SyncProducer(row.cluster.namesrv) as producer:
        member = row.client()
        asked = {"group": row.group, "topic": row.topic, "sql": "amount BETWEEN 4 AND 20 AND TAGS = 'odd'"}
        member.call("push", name="member", assigned=is_popped, **asked)
        for number in range(24):
            if number == 12:
                row.kill()
            tag = "odd" if number % 2 else "even"
            producer.send(row.topic, b"%d" % number, tags=tag, properties={"amount": str(number)})

        assert wait_until(lambda: {*member.bodies("member")} >= wanted, RETRY_SECONDS), member.bodies("member")
        rows.close(row, member, "member")
        assert {*member.bodies("member")} == wanted
        code = RequestCode.POP_MESSAGE if is_popped else RequestCode.PULL_MESSAGE
        asking = [one for one in row.tap.exchanges(code) if topic_of(one) == row.topic]
        assert asking
        if is_popped:
            assert {one.ext["expType"] for one in asking} == {"SQL92"}


def let_group_pop(row: Row) -> None:
    """Set the row's group to pop the row's topic."""
    mode = {"topic": row.topic, "consumerGroup": row.group, "mode": "POP", "popShareQueueNum": 0}
    with BareClient(row.cluster.client_address(row.cluster.leader())) as client:
        client.post(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
        answer = client.read()
    assert answer.code == ResponseCode.SUCCESS, answer.remark
