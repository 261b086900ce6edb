"""Administration through the ordinary protocol."""

from __future__ import annotations

import asyncio
import math
from functools import partial

import msgspec
import pytest
from client_fakes import HandClock, answering, fake_cluster, refusing, until

from dledger_client import (
    Admin,
    ConnectError,
    DeadlineError,
    GroupInUseError,
    InvalidArgumentError,
    MessageQueue,
    NoBrokerError,
    NotFoundError,
    PushConsumer,
    QueueRange,
    QueueReader,
    QueueStatus,
    Quota,
    QuotaRow,
    RefusedError,
)
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.consumers import (
    ConsumerConnection,
    MemberConnection,
    QueueProgress,
    QueueReaders,
    encode_consume_stats,
)
from dledger_remoting.consumers import QueueReader as QueueReaderRow
from dledger_remoting.heartbeat import MessageModel
from dledger_remoting.properties import format_properties
from dledger_remoting.record import encode_record
from dledger_remoting.statistics import GroupList, encode_topic_stats
from dledger_remoting.statistics import QueueRange as KeptRange
from dledger_remoting.topics import MessageQueue as BrokerQueue

LOST = refusing(ResponseCode.SYSTEM_ERROR, "leadership lost", outcome="unknown")
"""Answer of a leader that has lost the leadership meanwhile."""
DENIED = refusing(ResponseCode.NO_PERMISSION, "read only")
FULL = refusing(14, "n0's disk is full")


async def test_a_created_topic_can_be_used_at_once_and_a_deleted_one_is_gone(admin):
    await admin.create_topic("orders", queues=6)
    assert len((await admin.topic_route("orders")).writable) == 6
    assert await admin.topics() == ["T", "orders"]
    await admin.delete_topic("orders")
    assert await admin.topics() == ["T"]


async def test_delete_topic_reaches_every_living_name_server_and_raises_for_a_dead_one(cluster):
    async with fake_cluster() as other:
        await cluster.name_server.stop()
        addresses = [cluster.namesrv, other.namesrv]
        async with Admin(addresses) as admin:
            with pytest.raises(ConnectError, match=cluster.namesrv):
                await admin.delete_topic("T")
        assert "T" not in other.name_server.topics


async def test_the_cluster_is_listed_with_its_leaders():
    async with fake_cluster(groups=2) as cluster, Admin(cluster.namesrv) as admin:
        groups = await admin.broker_groups()
        assert sorted(groups) == ["broker-a", "broker-b"]
        assert groups["broker-b"].broker_addrs[0] == cluster.groups[1].nodes[0].address


async def test_offsets_are_shown_set_and_reset():
    async with fake_cluster(topics={"T": 2}) as cluster, Admin(cluster.namesrv) as admin:
        for _ in range(10):
            cluster.group.store("T", 1, b"x")
        queue = MessageQueue("T", "broker-a", 1)
        await admin.set_offset("CG", queue, 4)
        with pytest.raises(InvalidArgumentError, match="offset -1 of T/broker-a/1"):
            await admin.set_offset("CG", queue, -1)
        with pytest.raises(InvalidArgumentError, match="to='begin': one of first, last or an int"):
            await admin.reset_offsets("CG", "T", "begin")
        empty, filled = await admin.offsets("CG", "T")
        assert (empty.committed, empty.end, empty.lag) == (None, 0, 0)
        assert (filled.queue, filled.first, filled.end, filled.committed, filled.lag) == (queue, 0, 10, 4, 6)
        assert await admin.reset_offsets("CG", "T", "last") == {MessageQueue("T", "broker-a", 0): 0, queue: 10}
        assert (await admin.offsets("CG", "T"))[1].lag == 0
        assert (await admin.reset_offsets("CG", "T", 0))[queue] == 0
        assert (await admin.first_offset(queue), await admin.end_offset(queue)) == (0, 10)


async def test_a_group_with_members_is_neither_reset_nor_deleted():
    async with fake_cluster(groups=2) as cluster, Admin(cluster.namesrv) as admin:
        async with PushConsumer(cluster.namesrv, "CG", {"T": "*"}, client_id="reader-7"):
            await until(lambda: cluster.groups[1].members["CG"])
            cluster.group.members["CG"].clear()  # one broker group that knows a member is enough
            for attempt in (admin.delete_group("CG"), admin.reset_offsets("CG", "T", "first")):
                with pytest.raises(GroupInUseError, match=r"'CG' has 1 member, stop .* reader-7 \(127.0.0.1:\d+\)"):
                    await attempt
        assert not cluster.requests(RequestCode.DELETE_SUBSCRIPTION_GROUP)
        assert await admin.members("CG") == []
        await admin.reset_offsets("CG", "T", "first")


async def test_offset_changes_of_a_broadcasting_group_are_refused(cluster, admin):
    row = MemberConnection("reader-7", "10.0.0.1:4000", "JAVA")
    body = encode_body(ConsumerConnection([row], message_model=MessageModel.BROADCASTING))
    cluster.answer(RequestCode.GET_CONSUMER_CONNECTION_LIST, answering(body))
    for attempt in (
        admin.set_offset("CG", ("T", "broker-a", 0), 0),
        admin.reset_offsets("CG", "T", "first"),
        admin.clone_offsets("OTHER", "CG"),
    ):
        with pytest.raises(GroupInUseError, match="reader-7"):
            await attempt
    for code in (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.CLONE_GROUP_OFFSET):
        assert not cluster.requests(code)


def test_a_group_with_many_members_names_some_of_them():
    refused = GroupInUseError("CG", [f"m{number}" for number in range(1000)])
    assert len(refused.members) == 1000
    assert "has 1000 members" in str(refused)
    assert str(refused).endswith("m18, m19, 980 others")


async def test_readers_of_a_queue_are_the_newest_over_all_answering_nodes(cluster, admin):
    def answer(*readers):
        return answering(encode_body(QueueReaders([QueueReaderRow("T", *reader) for reader in readers])))

    first, second, third = cluster.group.nodes
    first.on[RequestCode.DLEDGER_QUEUE_READERS] = answer((0, ["a"], "h:1", 9_000), (1, ["b"], "h:2", 1_500))
    second.on[RequestCode.DLEDGER_QUEUE_READERS] = answer((0, ["c"], "h:3", 8_000))
    third.on[RequestCode.DLEDGER_QUEUE_READERS] = DENIED
    readers = await admin.readers("CG")
    zero, one = (MessageQueue("T", "broker-a", queue_id) for queue_id in (0, 1))
    assert readers == {zero: QueueReader(zero, ("c",), "h:3", 8.0), one: QueueReader(one, ("b",), "h:2", 1.5)}


async def test_progress_covers_every_broker_group_with_the_lag_of_kept_messages():
    def answer(name, **progress):
        return answering(encode_consume_stats({BrokerQueue(name, 0, "T"): QueueProgress(**progress)}))

    async with fake_cluster(groups=2) as cluster, Admin(cluster.namesrv) as admin:
        told = (
            answer("broker-a", broker_offset=10, consumer_offset=3, min_offset=4),
            answer("broker-b", broker_offset=5, consumer_offset=0, committed=False),
        )
        for group, one in zip(cluster.groups, told, strict=True):
            group.nodes[0].on[RequestCode.GET_CONSUME_STATS] = one
        first, second = await admin.progress("CG")
    assert (first, first.lag) == (QueueStatus(MessageQueue("T", "broker-a", 0), 4, 10, 3), 6)
    assert (second, second.lag) == (QueueStatus(MessageQueue("T", "broker-b", 0), 0, 5, None), 5)


async def test_statistics_of_a_topic_cover_every_broker_group_that_has_it():
    async with fake_cluster(groups=3) as cluster, Admin(cluster.namesrv) as admin:
        for group, queue_range, rate in zip(
            cluster.groups, (KeptRange(1700, 9, 4), KeptRange(0, 0, 0)), (2.5, 1.0), strict=False
        ):
            body = encode_topic_stats({BrokerQueue(group.name, 1, "T"): queue_range}, rate)
            group.nodes[0].on[RequestCode.GET_TOPIC_STATS_INFO] = answering(body)
            consumers = answering(encode_body(GroupList(["CG", f"of {group.name}"])))
            group.nodes[0].on[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = consumers
        missing = refusing(ResponseCode.TOPIC_NOT_EXIST)
        for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
            cluster.groups[2].nodes[0].on[code] = missing
        statistics = await admin.topic_statistics("T")
        assert statistics.queues == [
            QueueRange(MessageQueue("T", "broker-a", 1), 4, 9, 1700),
            QueueRange(MessageQueue("T", "broker-b", 1), 0, 0, None),
        ]
        assert statistics.stored_per_s == 3.5
        assert await admin.topic_consumers("T") == ["CG", "of broker-a", "of broker-b"]
        for group in cluster.groups:
            group.nodes[0].on[RequestCode.GET_TOPIC_STATS_INFO] = missing
        with pytest.raises(NotFoundError, match="topic 'T' does not exist"):
            await admin.topic_statistics("T")


@pytest.mark.parametrize("ext", [{}, {"position": "0"}, {"position": "0", "expires": "tomorrow"}])
async def test_an_unreadable_answer_to_a_pin_is_an_error_that_names_the_header(cluster, admin, ext):
    cluster.group.nodes[0].on[RequestCode.PIN_LOG] = answering(**ext)
    with pytest.raises(RefusedError, match="PinResponseHeader field"):
        await admin.pin("p", 0, broker_group="broker-a")


async def test_settings_are_sent_as_lines_and_told_by_broker_group(cluster, admin):
    node = cluster.group.nodes[0]
    node.on[RequestCode.UPDATE_BROKER_CONFIG] = answering()
    await admin.put_settings({"fileReservedTime": "48", "auto_create_topic": ""}, broker_groups=["broker-a"])
    (put,) = node.requests(RequestCode.UPDATE_BROKER_CONFIG)
    assert put.body == b"fileReservedTime=48\nauto_create_topic=\n"
    told = {"dledgerLive": '{"retention_hours":"48"}'}
    node.on[RequestCode.GET_BROKER_CONFIG] = answering(**told)
    assert await admin.settings(broker_groups=["broker-a"]) == {"broker-a": {"retention_hours": "48"}}
    node.on[RequestCode.GET_BROKER_CONFIG] = answering(dledgerLive="[")
    with pytest.raises(RefusedError, match="dledgerLive"):
        await admin.settings(broker_groups=["broker-a"])


async def test_quotas_are_put_as_bodies_and_told_by_broker_group(cluster, admin):
    node = cluster.group.nodes[0]
    node.on[RequestCode.PUT_QUOTA] = answering()
    await admin.put_quota(Quota("topic", "orders", messages_per_second=5), broker_groups=["broker-a"])
    (put,) = node.requests(RequestCode.PUT_QUOTA)
    assert put.body == b'{"kind":"topic","name":"orders","messagesPerSecond":5}'
    row = b'{"quotas":[{"kind":"account","name":"app","bytesPerSecond":9,"held":2}]}'
    node.on[RequestCode.LIST_QUOTAS] = answering(row)
    told = await admin.quotas(broker_groups=["broker-a"])
    assert told == {"broker-a": [QuotaRow("account", "app", 0, 9, held=2)]}


async def test_requests_follow_the_leader(cluster, admin):
    await admin.offsets("CG", "T")
    await cluster.group.nodes[0].kill()
    await cluster.group.elect(cluster.group.nodes[2], notify=False, register=False)
    await admin.set_offset("CG", ("T", "broker-a", 0), 3)
    assert cluster.group.offsets["CG", "T", 0] == 3


async def test_an_admin_call_has_an_unknown_outcome_if_any_attempt_had(cluster):
    async with Admin(cluster.namesrv, timeout=30) as admin:
        queue = MessageQueue("T", "broker-a", 0)
        await admin.set_offset("CG", queue, 1)
        leader = cluster.group.nodes[0]
        leader.answer_in_turn(RequestCode.UPDATE_CONSUMER_OFFSET, LOST, DENIED)
        with pytest.raises(RefusedError, match="read only") as refused:
            await admin.set_offset("CG", queue, 2)
        assert refused.value.outcome == "unknown"
        with HandClock() as clock:

            def too_late(command):
                clock.advance(30)
                return LOST(command)

            leader.on[RequestCode.UPDATE_CONSUMER_OFFSET] = too_late
            with pytest.raises(DeadlineError) as late:
                await admin.set_offset("CG", queue, 3)
        assert late.value.outcome == "unknown"
        leader.on[RequestCode.UPDATE_CONSUMER_OFFSET] = DENIED
        with pytest.raises(RefusedError) as never:
            await admin.set_offset("CG", queue, 4)
        assert never.value.outcome == "not_sent"


REFUSED_FOR_ITS_DISK = r"broker-a refused it until the deadline: .*n0's disk is full"


async def test_an_admin_error_names_the_full_disk_and_not_a_missing_leader(cluster):
    async with Admin(cluster.namesrv, timeout=0.5) as admin:
        leader, follower, _ = cluster.group.nodes
        pool = admin._calls.core.pool
        links = [await pool.get(node.address, math.inf) for node in cluster.group.nodes]
        leader.on[RequestCode.UPDATE_AND_CREATE_TOPIC] = FULL
        with HandClock() as clock:
            creating = asyncio.create_task(admin.create_topic("orders"))
            await clock.run_between_attempts(creating, links)
            with pytest.raises(DeadlineError, match=REFUSED_FOR_ITS_DISK) as late:
                await creating
    assert "leader" not in str(late.value)
    assert late.value.outcome == "not_sent"
    assert RequestCode.UPDATE_AND_CREATE_TOPIC in follower.codes()


async def test_an_attempt_that_the_deadline_cut_off_does_not_hide_why_the_leader_refused():
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.namesrv, timeout=2) as admin:
        leader = cluster.group.nodes[0]
        link = await admin._calls.core.pool.get(leader.address, math.inf)
        with HandClock() as clock:

            def full_then_silent(command):
                if leader.codes().count(RequestCode.UPDATE_AND_CREATE_TOPIC) == 1:
                    return FULL(command)
                clock.advance(2)
                return None

            leader.on[RequestCode.UPDATE_AND_CREATE_TOPIC] = full_then_silent
            creating = asyncio.create_task(admin.create_topic("orders"))
            await clock.run_between_attempts(creating, [link])
            with pytest.raises(DeadlineError, match=REFUSED_FOR_ITS_DISK) as late:
                await creating
    assert late.value.outcome == "unknown"


async def test_a_message_is_found_by_its_id_and_by_its_key(cluster, producer, admin):
    sent = await producer.send("T", b"body", key="order-1")
    record = cluster.group.queues["T", 0][0]
    here, keys = answering(encode_record(record)), {"order-1", "collides", sent.message_id}
    absent, other_id = ["can not find message by the offset, 12345"], sent.offset_message_id[:-16] + f"{12345:016X}"
    cluster.answer(
        RequestCode.VIEW_MESSAGE_BY_ID,
        lambda one: (here if int(one.ext["offset"]) == record.physical_offset else refusing(1, absent[0]))(one),
    )
    cluster.answer(
        RequestCode.QUERY_MESSAGE,
        lambda one: (here if one.ext["key"] in keys else refusing(ResponseCode.QUERY_NOT_FOUND))(one),
    )
    assert (await admin.message_by_id(sent.offset_message_id)).body == b"body"
    assert [message.body for message in await admin.messages_by_key("T", "order-1")] == [b"body"]
    assert len(await admin.messages_by_key("T", sent.message_id, unique=True)) == 1
    assert await admin.messages_by_key("T", "nothing") == []
    assert await admin.messages_by_key("T", "collides") == []
    with pytest.raises(NotFoundError):
        await admin.message_by_id(other_id)
    absent[0] = "bytes 0 to 100 of the log do not verify on this replica"
    with pytest.raises(RefusedError, match="do not verify") as caught:
        await admin.message_by_id(other_id)
    assert not isinstance(caught.value, NotFoundError), "the message may be there"


async def test_operations_without_a_registered_broker_raise_no_broker_error(cluster, producer, admin):
    sent = await producer.send("T", b"body")
    cluster.name_server.groups.clear()
    for call in (admin.message_by_id(sent.offset_message_id), admin.create_topic("orders")):
        with pytest.raises(NoBrokerError):
            await call


BAD = [
    (lambda admin: admin.create_topic("a b"), None),
    (lambda admin: admin.create_topic("orders", broker_groups=["broker-z"]), "not registered"),
    (lambda admin: admin.message_by_id("not an id"), None),
    *(
        (partial(Admin.messages_by_key, topic="T", key="k", max_messages=n), f"{n} is not between 1 and 64")
        for n in (0, 65)
    ),
    *((partial(Admin.put_settings, values={key: "1"}), "expected a key and a value") for key in ("", "a=b", "a\nb")),
]


@pytest.mark.parametrize(("call", "words"), BAD)
async def test_bad_names_keys_and_limits_are_refused_before_anything_is_asked(admin, call, words):
    with pytest.raises(InvalidArgumentError, match=words):
        await call(admin)


async def test_create_topic_sends_order_filter_type_and_system_flag(cluster, admin):
    await admin.create_topic("orders", order=True, filter_type="MULTI_TAG", sys_flag=1)
    sent = cluster.requests(RequestCode.UPDATE_AND_CREATE_TOPIC)[0].ext
    assert (sent["order"], sent["topicFilterType"], sent["topicSysFlag"]) == ("true", "MULTI_TAG", "1")


async def test_a_topic_that_was_changed_is_shown_with_its_new_queues():
    async with fake_cluster(topics={"T": 4}) as cluster, Admin(cluster.namesrv) as admin:
        registering = []

        async def register_later(command):
            async def register():
                await until(lambda: cluster.name_server.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 2)
                cluster.name_server.topics["T"] = int(command.ext["readQueueNums"])

            registering.append(asyncio.create_task(register()))
            return make_response(command, 0)

        cluster.group.nodes[0].on[RequestCode.UPDATE_AND_CREATE_TOPIC] = register_later
        for queues in (8, 2):
            await admin.create_topic("T", queues=queues)
            assert len((await admin.topic_route("T")).writable) == queues


def test_a_group_that_was_moved_beyond_the_end_is_not_behind():
    assert QueueStatus(MessageQueue("T", "broker-a", 0), first=0, end=10, committed=12).lag == 0


async def test_a_reset_moves_no_queue_before_all_offsets_are_known():
    async with (
        fake_cluster(groups=2) as cluster,
        Admin(cluster.namesrv) as admin,
        Admin(cluster.namesrv, timeout=0.5) as impatient,
    ):
        await admin.reset_offsets("CG", "T", "first")
        cluster.groups[0].queues["T", 0].append(None)
        await cluster.groups[1].nodes[0].kill()
        cluster.groups[1].leader = None
        with pytest.raises(DeadlineError):
            await impatient.reset_offsets("CG", "T", "last")
    assert cluster.groups[0].offsets["CG", "T", 0] == 0


async def test_messages_by_key_returns_the_newest_up_to_its_limit():
    async with fake_cluster(groups=2, topics={"T": 1}) as cluster, Admin(cluster.namesrv) as admin:
        for time_ms in range(6):
            group = cluster.groups[time_ms % 2]
            record = group.store("T", 0, b"%d" % time_ms, format_properties({"KEYS": "k"}).encode())
            group.queues["T", 0][-1] = msgspec.structs.replace(record, store_timestamp=time_ms)
        for group in cluster.groups:
            newest_first = group.queues["T", 0][::-1]
            group.nodes[0].on[RequestCode.QUERY_MESSAGE] = lambda command, found=newest_first: make_response(
                command, 0, body=b"".join(map(encode_record, found[: int(command.ext["maxNum"])]))
            )
        assert [one.body for one in await admin.messages_by_key("T", "k", max_messages=3)] == [b"3", b"4", b"5"]
