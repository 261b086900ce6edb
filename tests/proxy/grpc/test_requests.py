"""Requests of gRPC clients through a proxy to a real cluster, and through another one that goes on."""

from __future__ import annotations

import asyncio
import gzip
import time
from hashlib import md5

import pytest
from conftest import ENDPOINTS, consumer_settings, named, producer_settings, receive_request, telling
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from h2.settings import SettingCodes
from raw_client import RawClient, message_frame

from dledger_client import Admin, Producer
from dledger_proxy.grpc.definition import messaging_pb2 as pb
from dledger_remoting.codes import RequestCode

SECONDS = 20.0


@pytest.fixture
async def proxy(start_proxy, cluster):
    return await start_proxy(cluster.namesrv)


@pytest.fixture
def client(connect, proxy):
    return connect(proxy)


async def until(condition):
    """Wait until another process has come so far."""
    async with asyncio.timeout(SECONDS):
        while not await condition():  # noqa: ASYNC110 - there is no event of another process
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------- routes


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        (None, [pb.NORMAL]),
        ("FIFO", [pb.FIFO]),
        ("MIXED", [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
    ],
)
async def test_a_route_lists_every_queue_at_the_clients_own_proxies_with_the_kinds_it_takes(
    client, make_topic, kind, accepted
):
    topic = await make_topic(kind, queues=3)
    answer = await client.call("QueryRoute", topic=named(topic), endpoints=ENDPOINTS)
    assert answer.status.code == pb.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
    for queue in answer.message_queues:
        assert (queue.broker.id, queue.broker.endpoints, queue.permission) == (0, ENDPOINTS, pb.READ_WRITE)
        assert list(queue.accept_message_types) == accepted


async def test_advertised_addresses_replace_the_clients_own(start_proxy, connect, cluster, make_topic):
    topic = await make_topic()
    client = connect(await start_proxy(cluster.namesrv, advertised="proxy-1:8081;proxy-2:8082"))
    answer = await client.call("QueryRoute", topic=named(topic), endpoints=ENDPOINTS)
    endpoints = answer.message_queues[0].broker.endpoints
    assert endpoints.scheme == pb.DOMAIN_NAME
    assert [(one.host, one.port) for one in endpoints.addresses] == [("proxy-1", 8081), ("proxy-2", 8082)]


async def test_a_topic_that_is_not_there_is_not_found_and_not_made(client, cluster):
    answer = await client.call("QueryRoute", topic=named("nowhere"), endpoints=ENDPOINTS)
    assert answer.status.code == pb.TOPIC_NOT_FOUND
    assert (await client.send("nowhere")).status.code == pb.TOPIC_NOT_FOUND
    async with Admin(cluster.namesrv) as admin:
        assert "nowhere" not in await admin.topics()


async def test_members_of_a_group_ask_whole_brokers_and_each_queue_if_order_counts(
    client, make_topic, make_group, group_name
):
    topic = await make_topic(queues=3)
    fields = {"topic": named(topic), "endpoints": ENDPOINTS}
    plain = await client.call("QueryAssignment", group=named("some-group"), **fields)
    assert [one.message_queue.id for one in plain.assignments] == [-1]
    await make_group(group_name, consume_message_orderly=True)
    ordered = await client.call("QueryAssignment", group=named(group_name), **fields)
    assert [one.message_queue.id for one in ordered.assignments] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "code"),
    [("TBW102", pb.ILLEGAL_TOPIC), ("a b", pb.ILLEGAL_TOPIC), ("", pb.ILLEGAL_TOPIC), ("x" * 200, pb.ILLEGAL_TOPIC)],
)
async def test_names_that_no_topic_may_have_are_refused(client, name, code):
    answer = await client.call("QueryRoute", topic=named(name), endpoints=ENDPOINTS)
    assert answer.status.code == code


async def test_a_request_without_a_client_id_is_refused(connect, proxy):
    client = connect(proxy)
    del client.headers["x-mq-client-id"]
    assert (await client.call("Heartbeat")).status.code == pb.CLIENT_ID_REQUIRED


# ---------------------------------------------------------------- sends


async def test_a_repeated_send_is_stored_once_at_whichever_proxy(start_proxy, connect, cluster, make_topic, group_name):
    topic = await make_topic("NORMAL", queues=4)
    first = connect(await start_proxy(cluster.namesrv))
    second = connect(await start_proxy(cluster.namesrv))
    await first.receive(topic, group_name, wait_s=0)
    answers = [await one.send(topic, message_id="the-one") for one in (first, second, first)]
    assert {answer.entries[0].offset for answer in answers} == {0}
    assert [answer.entries[0].message_id for answer in answers] == ["the-one"] * 3
    assert len(await first.receive(topic, group_name)) == 1
    assert await first.receive(topic, group_name, wait_s=0) == []


async def test_several_messages_of_a_request_are_stored_together(client, make_topic, group_name):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    messages = [
        pb.Message(
            topic=named(topic), body=b"%d" % number, system_properties=pb.SystemProperties(message_id=f"b{number}")
        )
        for number in range(5)
    ]
    answer = await client.call("SendMessage", messages=messages)
    assert [entry.message_id for entry in answer.entries] == [f"b{number}" for number in range(5)]
    assert [entry.offset for entry in answer.entries] == list(range(5))
    got = await client.receive(topic, group_name)
    assert sorted(message.body for message in got) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_message_has_all_that_clients_read_of_it(client, make_topic, group_name):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    system = pb.SystemProperties(
        message_id="all",
        tag="t",
        keys=["k1", "k2"],
        born_timestamp=Timestamp(seconds=1_700_000_000),
        trace_context="ctx",
    )
    sent = pb.Message(topic=named(topic), body=b"body", user_properties={"a": "b"}, system_properties=system)
    await client.call("SendMessage", messages=[sent])
    (got,) = await client.receive(topic, group_name)
    props = got.system_properties
    assert (got.topic.name, got.body, dict(got.user_properties)) == (topic, b"body", {"a": "b"})
    assert (props.message_id, props.tag, list(props.keys), props.trace_context) == ("all", "t", ["k1", "k2"], "ctx")
    assert (props.body_digest.type, props.body_digest.checksum) == (pb.MD5, md5(b"body").hexdigest().upper())
    assert (props.body_encoding, props.message_type, props.delivery_attempt) == (pb.IDENTITY, pb.NORMAL, 1)
    assert (props.born_timestamp.seconds, props.born_host) == (1_700_000_000, "127.0.0.1")
    assert props.store_timestamp.seconds > 1_700_000_000
    assert props.receipt_handle
    assert props.invisible_duration.seconds == 10


async def test_a_body_in_gzip_and_a_large_body_of_a_remoting_client_come_plain(client, cluster, make_topic, group_name):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    await client.send(topic, gzip.compress(b"zipped" * 1000), body_encoding=pb.GZIP)
    async with Producer(cluster.namesrv) as producer:
        await producer.send(topic, b"large" * 5000)
    bodies: set[bytes] = set()
    while len(bodies) < 2:
        bodies |= {message.body for message in await client.receive(topic, group_name)}
    assert bodies == {b"zipped" * 1000, b"large" * 5000}


@pytest.mark.parametrize(
    ("kind", "system", "code"),
    [
        ("NORMAL", {"message_group": "g", "message_type": pb.FIFO}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("FIFO", {}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("MIXED", {"message_group": "g", "message_type": pb.NORMAL}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("MIXED", {"message_group": "g", "message_type": pb.TRANSACTION}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("MIXED", {"priority": 3}, pb.NOT_IMPLEMENTED),
        ("MIXED", {"lite_topic": "l"}, pb.NOT_IMPLEMENTED),
    ],
)
async def test_a_message_of_a_kind_that_its_topic_does_not_take_is_refused(
    client, make_topic, group_name, kind, system, code
):
    topic = await make_topic(kind)
    await client.receive(topic, group_name, wait_s=0)
    assert (await client.send(topic, **system)).status.code == code
    assert await client.receive(topic, group_name, wait_s=0) == []


async def test_kinds_are_not_checked_if_the_configuration_says_so(start_proxy, connect, cluster, make_topic):
    topic = await make_topic("NORMAL")
    client = connect(await start_proxy(cluster.namesrv, check_message_types=False))
    assert (await client.send(topic, message_group="g", message_type=pb.FIFO)).status.code == pb.OK
    assert (await client.send("nowhere-either")).status.code == pb.TOPIC_NOT_FOUND
    async with Admin(cluster.namesrv) as admin:
        assert "nowhere-either" not in await admin.topics()


async def test_a_recalled_message_does_not_come_and_a_delivered_one_cannot_be_recalled(client, make_topic, group_name):
    topic = await make_topic("DELAY")
    await client.receive(topic, group_name, wait_s=0)
    due = Timestamp(seconds=int(time.time()) + 2)
    gone = (await client.send(topic, b"gone", delivery_timestamp=due)).entries[0]
    kept = (await client.send(topic, b"kept", delivery_timestamp=due)).entries[0]
    answer = await client.call("RecallMessage", topic=named(topic), recall_handle=gone.recall_handle)
    assert (answer.status.code, answer.message_id) == (pb.OK, gone.message_id)
    (got,) = await client.receive(topic, group_name, wait_s=8)
    assert (got.body, got.system_properties.message_type) == (b"kept", pb.DELAY)
    late = await client.call("RecallMessage", topic=named(topic), recall_handle=kept.recall_handle)
    assert late.status.code == pb.BAD_REQUEST
    bad = await client.call("RecallMessage", topic=named(topic), recall_handle="nonsense")
    assert bad.status.code == pb.BAD_REQUEST


# ---------------------------------------------------------------- receiving


async def test_a_receipt_works_at_another_proxy_and_only_for_its_group_and_topic(
    start_proxy, connect, cluster, client, make_topic, group_name
):
    topic, other = await make_topic("NORMAL"), await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    await client.send(topic)
    (message,) = await client.receive(topic, group_name)
    elsewhere = connect(await start_proxy(cluster.namesrv))
    for wrong in ((other, group_name), (topic, "another-group")):
        assert (await elsewhere.ack(*wrong, message)).entries[0].status.code == pb.INVALID_RECEIPT_HANDLE
    assert (await elsewhere.ack(topic, group_name, message)).status.code == pb.OK


async def test_an_answer_about_several_messages_tells_them_apart(client, make_topic, group_name):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    await client.send(topic)
    (message,) = await client.receive(topic, group_name)
    made_up = pb.Message(system_properties=pb.SystemProperties(message_id="m", receipt_handle="AQBB"))
    answer = await client.ack(topic, group_name, message, made_up)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [pb.OK, pb.INVALID_RECEIPT_HANDLE]


async def test_a_changed_time_gives_a_new_handle_and_the_old_one_is_over(client, make_topic, group_name):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    await client.send(topic)
    (message,) = await client.receive(topic, group_name)
    fields = {"topic": named(topic), "group": named(group_name), "message_id": "m"}
    old = message.system_properties.receipt_handle
    changed = await client.call(
        "ChangeInvisibleDuration", receipt_handle=old, invisible_duration=Duration(seconds=20), **fields
    )
    assert changed.status.code == pb.OK
    assert changed.receipt_handle != old
    assert (await client.ack(topic, group_name, message)).status.code == pb.INVALID_RECEIPT_HANDLE
    message.system_properties.receipt_handle = changed.receipt_handle
    assert (await client.ack(topic, group_name, message)).status.code == pb.OK


async def test_a_message_that_is_given_back_comes_again_as_the_second_attempt_after_a_second(
    client, make_topic, group_name
):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    await client.send(topic)
    (message,) = await client.receive(topic, group_name)
    await client.call(
        "ChangeInvisibleDuration",
        topic=named(topic),
        group=named(group_name),
        receipt_handle=message.system_properties.receipt_handle,
        invisible_duration=Duration(seconds=0),
    )
    assert await client.receive(topic, group_name, wait_s=0) == []
    (again,) = await client.receive(topic, group_name, wait_s=10)
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.message_id == message.system_properties.message_id


async def test_messages_of_a_client_that_is_gone_come_at_once_as_the_first_attempt(
    client, connect, proxy, make_topic, group_name
):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    gone = connect(proxy)
    waiting = asyncio.ensure_future(gone.receive(topic, group_name, wait_s=15))
    await until(lambda: _polls(proxy))
    gone.channel.close()
    await until(lambda: _no_polls(proxy))
    await client.send(topic)
    (message,) = await client.receive(topic, group_name, wait_s=8)
    assert message.system_properties.delivery_attempt == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("lease", [False, True])
async def test_messages_of_an_answer_that_cannot_be_written_come_at_once_as_the_first_attempt(
    client, proxy, make_topic, group_name, lease
):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    for _ in range(3):
        await client.send(topic)
    stuck = await RawClient.to(proxy)
    stuck.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    wanted = receive_request(topic, group_name, wait_s=15, lease=lease)
    stream = stuck.request("ReceiveMessage")
    stuck.send(stream, message_frame(wanted.SerializeToString()), end=True)
    await until(lambda: _counted(proxy, "ReceiveMessage", "OK"))
    assert await client.receive(topic, group_name, wait_s=0) == []
    stuck.close()
    got = []

    async def all_came():
        got.extend(await client.receive(topic, group_name, wait_s=1))
        return len(got) == 3

    await until(all_came)
    assert {message.system_properties.delivery_attempt for message in got} == {1}


async def _counted(proxy, request, code):
    return proxy.counters.answers[request, code] > 0


async def _polls(proxy):
    return proxy.counters.polls == 1


async def _no_polls(proxy):
    return proxy.counters.polls == 0


async def test_nothing_to_receive_is_told_and_no_error(client, make_topic, group_name):
    topic = await make_topic("NORMAL")
    (answer,) = await client.receive_all(topic, group_name, wait_s=0)
    assert answer.status.code == pb.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"batch_size": 0}, pb.BAD_REQUEST),
        ({"batch_size": 33}, pb.BAD_REQUEST),
        ({"invisible_duration": Duration(seconds=9)}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": Duration(seconds=13 * 3600)}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"filter_expression": pb.FilterExpression(type=pb.SQL, expression="a >")}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"attempt_id": "x" * 200}, pb.BAD_REQUEST),
    ],
)
async def test_a_receive_that_cannot_be_served_is_refused(client, make_topic, group_name, fields, code):
    topic = await make_topic("NORMAL")
    (answer,) = await client.receive_all(topic, group_name, wait_s=0, **fields)
    assert answer.status.code == code


async def test_groups_of_the_service_are_refused(client, make_topic):
    (answer,) = await client.receive_all(await make_topic("NORMAL"), "CID_RMQ_SYS_x", wait_s=0)
    assert answer.status.code == pb.ILLEGAL_CONSUMER_GROUP


async def test_a_broker_group_that_is_not_there_is_refused_and_not_remembered(client, proxy, make_topic, group_name):
    topic = await make_topic("NORMAL")
    queue = pb.MessageQueue(topic=named(topic), broker=pb.Broker(name="made-up"))
    (answer,) = await client.receive_all(topic, group_name, wait_s=0, message_queue=queue)
    assert answer.status.code == pb.TOPIC_NOT_FOUND
    assert "made-up" not in proxy.backends.core.routes.groups


async def test_a_message_forwarded_to_the_dead_letters_is_there_once_and_says_where_it_is_from(
    client, make_topic, group_name
):
    topic = await make_topic("NORMAL")
    await client.receive(topic, group_name, wait_s=0)
    await client.send(topic, b"bad", message_id="bad-one")
    (message,) = await client.receive(topic, group_name)
    fields = {"topic": named(topic), "group": named(group_name), "message_id": "bad-one"}
    handle = message.system_properties.receipt_handle
    answers = [await client.call("ForwardMessageToDeadLetterQueue", receipt_handle=handle, **fields) for _ in range(2)]
    assert [answer.status.code for answer in answers] == [pb.OK, pb.INVALID_RECEIPT_HANDLE]
    found = []

    async def has_come():  # the name server learns of the new topic a moment later
        found.extend(await client.receive(f"%DLQ%{group_name}", "dead-readers", wait_s=1))
        return bool(found)

    await until(has_come)
    (dead,) = found
    assert (dead.body, dead.system_properties.dead_letter_queue.topic) == (b"bad", topic)
    assert await client.receive(topic, group_name, wait_s=0) == []


async def test_a_fifo_group_gets_a_message_group_in_order_and_an_attempt_again(
    client, start_proxy, connect, cluster, make_topic, make_group, group_name
):
    topic = await make_topic("FIFO", queues=1)
    await make_group(group_name, consume_message_orderly=True)
    await client.receive(topic, group_name, wait_s=0)
    for number in range(3):
        await client.send(topic, b"%d" % number, message_group="g", message_type=pb.FIFO)
    first = await client.receive(topic, group_name, attempt_id="attempt-1", batch_size=2)
    assert [message.body for message in first] == [b"0", b"1"]
    elsewhere = connect(await start_proxy(cluster.namesrv))
    assert await elsewhere.receive(topic, group_name, wait_s=0, attempt_id="attempt-2") == []
    again = await elsewhere.receive(topic, group_name, attempt_id="attempt-1", batch_size=2)
    assert [message.body for message in again] == [b"0", b"1"]
    await elsewhere.ack(topic, group_name, *again)
    (last,) = await client.receive(topic, group_name, attempt_id="attempt-3")
    assert (last.body, last.system_properties.message_group) == (b"2", "g")


async def test_leased_messages_stay_hidden_while_their_client_lives_and_come_when_it_ends(
    client, connect, proxy, make_topic, group_name
):
    topic = await make_topic("NORMAL")
    holder = connect(proxy)
    async with telling(holder, consumer_settings(topic, group_name)) as stream:
        assert stream.settled.status.code == pb.OK
        await until(lambda: _is_member(proxy, group_name, holder.client_id))
        await holder.receive(topic, group_name, wait_s=0, lease=True)
        await client.send(topic)
        (message,) = await holder.receive(topic, group_name, lease=True)
        assert message.system_properties.invisible_duration.seconds == 30
        assert await client.receive(topic, group_name, wait_s=0) == []
        await holder.call("NotifyClientTermination", group=named(group_name))
    (again,) = await client.receive(topic, group_name, wait_s=15)
    assert again.system_properties.delivery_attempt == 2


async def _is_member(proxy, group, client_id):
    async with Admin(proxy.config.namesrv) as admin:
        return client_id in {member.client_id for member in await admin.members(group)}


# ---------------------------------------------------------------- transactions


async def test_a_transaction_ends_at_another_proxy_and_a_forged_id_is_refused(
    start_proxy, connect, cluster, client, make_topic, group_name
):
    topic = await make_topic("TRANSACTION")
    await client.receive(topic, group_name, wait_s=0)
    entry = (await client.send(topic, message_type=pb.TRANSACTION)).entries[0]
    assert await client.receive(topic, group_name, wait_s=0) == []
    elsewhere = connect(await start_proxy(cluster.namesrv))
    fields = {"topic": named(topic), "message_id": entry.message_id, "resolution": pb.COMMIT}
    forged = await elsewhere.call("EndTransaction", transaction_id=entry.transaction_id[:-2] + "AA", **fields)
    assert forged.status.code == pb.INVALID_TRANSACTION_ID
    for _ in range(2):
        answer = await elsewhere.call("EndTransaction", transaction_id=entry.transaction_id, **fields)
        assert answer.status.code == pb.OK
    (message,) = await client.receive(topic, group_name)
    assert message.system_properties.message_type == pb.TRANSACTION
    fields["resolution"] = pb.ROLLBACK
    too_late = await elsewhere.call("EndTransaction", transaction_id=entry.transaction_id, **fields)
    assert too_late.status.code == pb.INVALID_TRANSACTION_ID


async def test_a_question_about_a_transaction_comes_to_the_producer_of_another_proxy(
    start_proxy, connect, cluster, client, make_topic, group_name, monkeypatch
):
    monkeypatch.setattr("dledger_proxy.registrations.BEAT_SECONDS", 1_000)  # it is registered at once
    topic = await make_topic("TRANSACTION")
    await client.receive(topic, group_name, wait_s=0)
    producer = connect(await start_proxy(cluster.namesrv))
    async with telling(producer, producer_settings(topic)) as stream:
        sent = (await client.send(topic, b"orphan", message_type=pb.TRANSACTION)).entries[0]
        async with asyncio.timeout(SECONDS):
            command = await stream.recv_message()
        question = command.recover_orphaned_transaction_command
        assert (question.message.body, question.message.topic.name) == (b"orphan", topic)
        assert question.message.system_properties.message_id == sent.message_id
        answer = await producer.call(
            "EndTransaction",
            topic=named(topic),
            message_id=sent.message_id,
            transaction_id=question.transaction_id,
            resolution=pb.COMMIT,
            source=pb.SOURCE_SERVER_CHECK,
        )
        assert answer.status.code == pb.OK
    (message,) = await client.receive(topic, group_name)
    assert message.body == b"orphan"


# ---------------------------------------------------------------- clients


async def test_settings_of_a_consumer_come_back_with_those_of_its_group(client, make_topic, make_group, group_name):
    topic = await make_topic()
    await make_group(group_name, consume_message_orderly=True, retry_max_times=4)
    async with telling(client, consumer_settings(topic, group_name)) as stream:
        settled = stream.settled
    assert settled.status.code == pb.OK
    subscription, backoff = settled.settings.subscription, settled.settings.backoff_policy
    assert (subscription.fifo, subscription.receive_batch_size, subscription.group.name) == (True, 32, group_name)
    assert subscription.long_polling_timeout.seconds == 20
    assert (backoff.max_attempts, backoff.customized_backoff.next[0].seconds) == (5, 1)
    assert settled.settings.HasField("metric")
    assert not settled.settings.metric.on


async def test_settings_of_a_producer_come_back_with_limits_and_back_off(client, make_topic):
    topic = await make_topic()
    async with telling(client, producer_settings(topic)) as stream:
        settings = stream.settled.settings
    assert (settings.publishing.max_body_size, settings.publishing.validate_message_type) == (4 << 20, True)
    assert settings.backoff_policy.exponential_backoff.multiplier == 2
    assert settings.publishing.topics[0].name == topic


async def test_settings_with_a_bad_filter_are_refused_with_their_code(client, make_topic, group_name):
    settings = consumer_settings(await make_topic(), group_name)
    settings.subscription.subscriptions[0].expression.CopyFrom(pb.FilterExpression(type=pb.SQL, expression="a >"))
    async with telling(client, settings) as stream:
        assert stream.settled.status.code == pb.ILLEGAL_FILTER_EXPRESSION


async def test_brokers_know_a_client_with_its_address_language_and_subscription_until_it_ends(
    client, cluster, proxy, make_topic, group_name
):
    topic = await make_topic()
    async with telling(client, consumer_settings(topic, group_name)), Admin(cluster.namesrv) as admin:
        await until(lambda: _is_member(proxy, group_name, client.client_id))
        (member,) = await admin.members(group_name)
        assert (member.language, member.subscriptions) == ("JAVA", {topic: "*"})
        assert member.address.startswith("127.0.0.1:")
        await client.call("NotifyClientTermination", group=named(group_name))
        await until(lambda: _is_gone(admin, group_name))


async def _is_gone(admin, group):
    return await admin.members(group) == []


async def test_an_operator_sees_the_stacks_of_a_client_and_has_it_try_a_message(
    client, cluster, proxy, make_topic, group_name
):
    topic = await make_topic("NORMAL", queues=1)
    sent = (await client.send(topic, b"try me")).entries[0]
    async with telling(client, consumer_settings(topic, group_name)) as stream, Admin(cluster.namesrv) as admin:
        await until(lambda: _is_member(proxy, group_name, client.client_id))
        fields = {"consumerGroup": group_name, "clientId": client.client_id}

        def ask(code, **more):
            asking = proxy.backends.ask("broker-a", code, fields | more, deadline=proxy.backends.deadline())
            return asyncio.ensure_future(asking)

        state = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
        async with asyncio.timeout(SECONDS):
            asked = (await stream.recv_message()).print_thread_stack_trace_command
        trace = pb.ThreadStackTrace(nonce=asked.nonce, thread_stack_trace="main: it waits")
        await stream.send_message(pb.TelemetryCommand(thread_stack_trace=trace))
        assert b"main: it waits" in (await state).body
        (found,) = await admin.messages_by_key(topic, sent.message_id, unique=True)
        for code, word in ((pb.OK, b"CR_SUCCESS"), (pb.FAILED_TO_CONSUME_MESSAGE, b"CR_LATER")):
            tried = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=found.offset_message_id, brokerName="broker-a")
            async with asyncio.timeout(SECONDS):
                question = (await stream.recv_message()).verify_message_command
            assert question.message.body == b"try me"
            result = pb.VerifyMessageResult(nonce=question.nonce)
            await stream.send_message(pb.TelemetryCommand(status=pb.Status(code=code), verify_message_result=result))
            assert word in (await tried).body


async def test_progress_of_a_group_shows_its_true_lag(client, cluster, make_topic, group_name):
    topic = await make_topic("NORMAL", queues=1)
    await client.receive(topic, group_name, wait_s=0)
    for _ in range(5):
        await client.send(topic)
    got = await client.receive(topic, group_name, batch_size=2)
    await client.ack(topic, group_name, *got)

    async def lag():
        async with Admin(cluster.namesrv) as admin:
            return sum(status.lag for status in await admin.progress(group_name, topic))

    await until(lambda: _equals(lag, 3))


async def _equals(read, wanted):
    return await read() == wanted


@pytest.mark.parametrize("name", ["UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription"])
async def test_requests_that_the_real_proxy_does_not_support_are_answered_50100(client, name):
    assert (await client.call(name)).status.code == pb.NOT_IMPLEMENTED


async def test_a_pull_is_answered_50100(client):
    (answer,) = await client.call("PullMessage")
    assert answer.status.code == pb.NOT_IMPLEMENTED
