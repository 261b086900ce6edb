"""Administration through the ordinary protocol."""

from __future__ import annotations

import asyncio
import math

import msgspec
import pytest
from client_fakes import HandClock, fake_cluster, until

from dledger_client import (
    Admin,
    ConnectError,
    DeadlineError,
    GroupInUseError,
    InvalidArgumentError,
    MessageQueue,
    NoBrokerError,
    NotFoundError,
    Producer,
    PushConsumer,
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
from dledger_remoting.topics import MessageQueue as BrokerQueue


async def test_a_created_topic_can_be_used_at_once_and_a_deleted_one_is_gone():
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        await admin.create_topic("orders", queues=6)
        assert len((await admin.topic_route("orders")).writable) == 6
        assert await admin.topics() == ["T", "orders"]
        await admin.delete_topic("orders")
        assert await admin.topics() == ["T"]


async def test_a_deleted_topic_is_gone_from_every_name_server_that_answers_and_the_others_are_an_error():
    async with fake_cluster() as cluster, fake_cluster() as other:
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
            cluster.group.store("T", 1, b"x", b"")
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
            cluster.group.members["CG"].clear()  # it is enough that one broker group knows a member
            for attempt in (admin.delete_group("CG"), admin.reset_offsets("CG", "T", "first")):
                with pytest.raises(GroupInUseError, match=r"'CG' has 1 member, stop .* reader-7 \(127.0.0.1:\d+\)"):
                    await attempt
        codes = {code for group in cluster.groups for node in group.nodes for code in node.codes()}
        assert RequestCode.DELETE_SUBSCRIPTION_GROUP not in codes
        assert await admin.members("CG") == []
        await admin.reset_offsets("CG", "T", "first")


async def test_a_group_whose_members_keep_their_own_offsets_is_moved_by_no_call():
    def members(command):
        row = MemberConnection("reader-7", "10.0.0.1:4000", "JAVA")
        body = encode_body(ConsumerConnection([row], message_model=MessageModel.BROADCASTING))
        return make_response(command, 0, body=body)

    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        for node in cluster.group.nodes:
            node.on[RequestCode.GET_CONSUMER_CONNECTION_LIST] = members
        for attempt in (
            admin.set_offset("CG", ("T", "broker-a", 0), 0),
            admin.reset_offsets("CG", "T", "first"),
            admin.clone_offsets("OTHER", "CG"),
        ):
            with pytest.raises(GroupInUseError, match="reader-7"):
                await attempt
        codes = {code for node in cluster.group.nodes for code in node.codes()}
        assert codes.isdisjoint({RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.CLONE_GROUP_OFFSET})


def test_a_group_with_many_members_names_some_of_them():
    refused = GroupInUseError("CG", [f"m{number}" for number in range(1000)])
    assert len(refused.members) == 1000
    assert "has 1000 members" in str(refused)
    assert str(refused).endswith("m18, m19, 980 others")


async def test_readers_are_the_newest_of_all_nodes_that_answer():
    def answer(*readers):
        body = encode_body(QueueReaders([QueueReaderRow("T", *reader) for reader in readers]))
        return lambda command: make_response(command, 0, body=body)

    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        first, second, third = cluster.group.nodes
        first.on[RequestCode.DLEDGER_QUEUE_READERS] = answer((0, ["a"], "h:1", 9_000), (1, ["b"], "h:2", 1_500))
        second.on[RequestCode.DLEDGER_QUEUE_READERS] = answer((0, ["c"], "h:3", 8_000))
        third.on[RequestCode.DLEDGER_QUEUE_READERS] = denied
        readers = await admin.readers("CG")
    zero, one = (MessageQueue("T", "broker-a", queue_id) for queue_id in (0, 1))
    assert readers == {zero: QueueReader(zero, ("c",), "h:3", 8.0), one: QueueReader(one, ("b",), "h:2", 1.5)}


async def test_progress_comes_from_every_broker_group_with_the_lag_of_what_is_kept():
    def answer(name, **progress):
        body = encode_consume_stats({BrokerQueue(name, 0, "T"): QueueProgress(**progress)})
        return lambda command: make_response(command, 0, body=body)

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


@pytest.mark.parametrize("ext", [{}, {"position": "0"}, {"position": "0", "expires": "tomorrow"}])
async def test_an_answer_to_a_pin_that_cannot_be_read_is_an_error_that_names_the_field(ext):
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        cluster.group.nodes[0].on[RequestCode.PIN_LOG] = lambda command: make_response(command, 0, ext=ext)
        with pytest.raises(RefusedError, match="PinResponseHeader field"):
            await admin.pin("p", 0, broker_group="broker-a")


async def test_settings_are_sent_as_lines_and_told_by_broker_group():
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        bodies = []

        def put(command):
            bodies.append(bytes(command.body))
            return make_response(command, 0)

        node = cluster.group.nodes[0]
        node.on[RequestCode.UPDATE_BROKER_CONFIG] = put
        await admin.put_settings({"fileReservedTime": "48", "auto_create_topic": ""}, broker_groups=["broker-a"])
        assert bodies == [b"fileReservedTime=48\nauto_create_topic=\n"]
        told = {"dledgerLive": '{"retention_hours":"48"}'}
        node.on[RequestCode.GET_BROKER_CONFIG] = lambda command: make_response(command, 0, ext=told)
        assert await admin.settings(broker_groups=["broker-a"]) == {"broker-a": {"retention_hours": "48"}}
        node.on[RequestCode.GET_BROKER_CONFIG] = lambda command: make_response(command, 0, ext={"dledgerLive": "["})
        with pytest.raises(RefusedError, match="dledgerLive"):
            await admin.settings(broker_groups=["broker-a"])


async def test_quotas_are_put_as_bodies_and_told_by_broker_group():
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        bodies = []

        def put(command):
            bodies.append(bytes(command.body))
            return make_response(command, 0)

        node = cluster.group.nodes[0]
        node.on[RequestCode.PUT_QUOTA] = put
        await admin.put_quota(Quota("topic", "orders", messages_per_second=5), broker_groups=["broker-a"])
        assert bodies == [b'{"kind":"topic","name":"orders","messagesPerSecond":5}']
        row = b'{"quotas":[{"kind":"account","name":"app","bytesPerSecond":9,"held":2}]}'
        node.on[RequestCode.LIST_QUOTAS] = lambda command: make_response(command, 0, body=row)
        told = await admin.quotas(broker_groups=["broker-a"])
        assert told == {"broker-a": [QuotaRow("account", "app", 0, 9, held=2)]}


@pytest.mark.parametrize("key", ["", "a=b", "a\nb"])
async def test_a_setting_that_is_no_line_is_refused_before_anything_is_asked(key):
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgumentError, match="expected a key and a value"):
            await admin.put_settings({key: "1"}, broker_groups=["broker-a"])


async def test_requests_follow_the_leader():
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        await admin.offsets("CG", "T")
        await cluster.group.nodes[0].kill()
        await cluster.group.elect(cluster.group.nodes[2], notify=False, register=False)
        await admin.set_offset("CG", ("T", "broker-a", 0), 3)
        assert cluster.group.offsets["CG", "T", 0] == 3


async def test_a_call_is_of_unknown_outcome_if_any_of_its_attempts_was():
    async with fake_cluster() as cluster, Admin(cluster.namesrv, timeout=30) as admin:
        queue = MessageQueue("T", "broker-a", 0)
        await admin.set_offset("CG", queue, 1)
        answers = [denied, lost]

        def first_lost(command):
            return answers.pop()(command)

        cluster.group.nodes[0].on[RequestCode.UPDATE_CONSUMER_OFFSET] = first_lost
        with pytest.raises(RefusedError, match="read only") as refused:
            await admin.set_offset("CG", queue, 2)
        assert refused.value.outcome == "unknown"
        with HandClock() as clock:

            def too_late(command):
                clock.advance(30)
                return lost(command)

            cluster.group.nodes[0].on[RequestCode.UPDATE_CONSUMER_OFFSET] = too_late
            with pytest.raises(DeadlineError) as late:
                await admin.set_offset("CG", queue, 3)
        assert late.value.outcome == "unknown"
        cluster.group.nodes[0].on[RequestCode.UPDATE_CONSUMER_OFFSET] = denied
        with pytest.raises(RefusedError) as never:
            await admin.set_offset("CG", queue, 4)
        assert never.value.outcome == "not_sent"


REFUSED_FOR_ITS_DISK = r"broker-a refused it until the deadline: .*n0's disk is full"


async def test_a_refusal_for_a_full_disk_is_what_the_error_says_and_not_that_nobody_leads():
    async with fake_cluster() as cluster, Admin(cluster.namesrv, timeout=0.5) as admin:
        leader, follower, _ = cluster.group.nodes
        pool = admin._calls.core.pool
        links = [await pool.get(node.address, math.inf) for node in cluster.group.nodes]
        leader.on[RequestCode.UPDATE_AND_CREATE_TOPIC] = lambda command: make_response(command, 14, "n0's disk is full")
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
                    return make_response(command, 14, "n0's disk is full")
                clock.advance(2)
                return None

            leader.on[RequestCode.UPDATE_AND_CREATE_TOPIC] = full_then_silent
            creating = asyncio.create_task(admin.create_topic("orders"))
            await clock.run_between_attempts(creating, [link])
            with pytest.raises(DeadlineError, match=REFUSED_FOR_ITS_DISK) as late:
                await creating
    assert late.value.outcome == "unknown"


def lost(command):
    """What a leader says that lost its leadership meanwhile."""
    return make_response(command, ResponseCode.SYSTEM_ERROR, "leadership lost", {"outcome": "unknown"})


def denied(command):
    return make_response(command, ResponseCode.NO_PERMISSION, "read only")


async def test_a_message_is_found_by_its_id_and_by_its_key():
    async with (
        fake_cluster(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv) as producer,
        Admin(cluster.namesrv) as admin,
    ):
        sent = await producer.send("T", b"body", key="order-1")
        record = cluster.group.queues["T", 0][0]
        leader = cluster.group.nodes[0]
        leader.on[RequestCode.VIEW_MESSAGE_BY_ID] = lambda command: (
            make_response(command, 0, body=encode_record(record))
            if int(command.ext["offset"]) == record.physical_offset
            else make_response(command, 1, "can not find message by the offset")
        )
        leader.on[RequestCode.QUERY_MESSAGE] = lambda command: (
            make_response(command, 0, body=encode_record(record))
            if command.ext["key"] in {"order-1", "collides", sent.message_id}
            else make_response(command, ResponseCode.QUERY_NOT_FOUND, "nothing")
        )
        assert (await admin.message_by_id(sent.offset_message_id)).body == b"body"
        assert [message.body for message in await admin.messages_by_key("T", "order-1")] == [b"body"]
        assert len(await admin.messages_by_key("T", sent.message_id, unique=True)) == 1
        assert await admin.messages_by_key("T", "nothing") == []
        assert await admin.messages_by_key("T", "collides") == []
        with pytest.raises(NotFoundError):
            await admin.message_by_id(sent.offset_message_id[:-16] + f"{12345:016X}")
        with pytest.raises(InvalidArgumentError):
            await admin.message_by_id("not an id")


async def test_what_nobody_could_be_asked_for_is_not_reported_as_missing():
    async with (
        fake_cluster() as cluster,
        Producer(cluster.namesrv, group="P") as producer,
        Admin(cluster.namesrv) as admin,
    ):
        sent = await producer.send("T", b"body")
        cluster.name_server.groups.clear()
        with pytest.raises(NoBrokerError):
            await admin.message_by_id(sent.offset_message_id)
        with pytest.raises(NoBrokerError):
            await admin.create_topic("orders")


async def test_bad_names_are_refused_before_anything_is_asked():
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgumentError):
            await admin.create_topic("a b")
        with pytest.raises(InvalidArgumentError, match="not registered"):
            await admin.create_topic("orders", broker_groups=["broker-z"])


@pytest.mark.parametrize("number", [0, 65])
async def test_a_number_of_messages_that_brokers_do_not_give_is_refused(number):
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgumentError, match=f"max_messages {number} is not between 1 and 64"):
            await admin.messages_by_key("T", "k", max_messages=number)


async def test_a_topic_is_sent_with_the_settings_that_other_clients_make_something_of():
    async with fake_cluster() as cluster, Admin(cluster.namesrv) as admin:
        await admin.create_topic("orders", order=True, filter_type="MULTI_TAG", sys_flag=1)
        sent = next(
            one.ext for one in cluster.group.nodes[0].received if one.code == RequestCode.UPDATE_AND_CREATE_TOPIC
        )
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


async def test_a_reset_moves_nothing_before_it_knows_where_to():
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


async def test_of_more_messages_with_a_key_than_wanted_the_newest_are_shown():
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
