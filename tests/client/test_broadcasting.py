"""Broadcasting: every member gets all messages from its start on, and continues from its own offset file."""

from __future__ import annotations

import asyncio
import json

import pytest
from client_fakes import until
from consuming import fill, take

from dledger_client import PushConsumer
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import make_response

KEPT_FROM = 4


def member(cluster, path, **options):
    return PushConsumer(cluster.namesrv, "CG", "T", broadcast=True, offset_file=path, **options)


async def first_offset_read(cluster, path, start_from):
    """Return the offset at which a member begins in a queue with messages 0 to 9, once another has been stored."""
    async with member(cluster, path, start_from=start_from) as consumer:
        await until(lambda: any(one.progress is not None for one in consumer._running.assignments.fetchers()))
        fill(cluster, 1)
        [message] = await take(consumer, 1)
        return message.queue_offset


@pytest.mark.parametrize("kept_from", [0, KEPT_FROM])
@pytest.mark.parametrize(("start_from", "expected"), [("first", None), ("last", 10), (7_000, 7), (0, None)])
async def test_a_new_broadcast_member_begins_at_start_from_in_trimmed_queues(
    cluster, tmp_path, kept_from, start_from, expected
):
    fill(cluster, 10)
    cluster.group.first_offsets["T", 0] = kept_from

    def at_time(command):
        offset = max(kept_from, int(command.ext["timestamp"]) // 1_000)
        return make_response(command, 0, ext={"offset": str(offset)})

    cluster.answer(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at_time)
    assert await first_offset_read(cluster, tmp_path / "offsets.json", start_from) == (
        kept_from if expected is None else expected
    )


async def test_a_broadcast_member_with_a_trimmed_offset_continues_at_the_first_kept_message(cluster, tmp_path):
    path = tmp_path / "offsets.json"
    fill(cluster, 2)
    async with member(cluster, path) as consumer:
        await take(consumer, 2)
    fill(cluster, 8)
    cluster.group.first_offsets["T", 0] = KEPT_FROM
    async with member(cluster, path, start_from="last") as consumer:
        assert [message.queue_offset for message in await take(consumer, 6)] == list(range(KEPT_FROM, 10))


async def test_a_broadcast_member_that_starts_at_the_last_skips_nothing_on_return(cluster, tmp_path):
    path = tmp_path / "offsets.json"
    fill(cluster, 3)
    async with member(cluster, path, start_from="last"):
        await until(path.exists)
    fill(cluster, 2)
    async with member(cluster, path, start_from="last") as consumer:
        assert [message.queue_offset for message in await take(consumer, 2)] == [3, 4]


@pytest.mark.parametrize("knows", [True, False], ids=["its file", "the route"])
async def test_a_member_that_comes_back_reads_all_of_a_topic_that_was_made_again(cluster, tmp_path, knows):
    """The file of a member names the creation to which its offset belongs.

    The file of an earlier version does not. Then the creation is the one that the route names, and a later one is
    noticed.
    """
    path = tmp_path / "offsets.json"
    fill(cluster, 20)
    async with member(cluster, path) as consumer:
        await take(consumer, 20)
    stored = json.loads(path.read_text())
    assert stored == {"T/broker-a/0": 20, "T/broker-a/0@created": cluster.group.created["T"]}
    if not knows:
        cluster.group.told_in_routes["T"] = cluster.group.created["T"]
        path.write_text(json.dumps({"T/broker-a/0": 20}))
    cluster.group.queues["T", 0].clear()
    cluster.group.created["T"] += 1
    fill(cluster, 50)
    async with member(cluster, path) as consumer:
        assert [message.queue_offset for message in await take(consumer, 50)] == list(range(50))


async def test_the_file_is_whole_at_any_time(cluster, tmp_path):
    """A reader never finds a partly written file."""
    path = tmp_path / "folder" / "offsets.json"
    fill(cluster, 200)
    async with member(cluster, path) as consumer:
        for number in range(40):
            await take(consumer, 5)
            await consumer.commit()
            assert json.loads(path.read_text())["T/broker-a/0"] == (number + 1) * 5
            await asyncio.sleep(0)
    assert [one.name for one in path.parent.iterdir()] == ["offsets.json"]


async def test_members_that_broadcast_commit_nothing_at_brokers_and_give_nothing_back(cluster, tmp_path):
    fill(cluster, 2)
    async with member(cluster, tmp_path / "offsets.json", auto_ack=False) as consumer:
        first, second = await take(consumer, 2)
        first.retry()
        second.ack()
    codes = [code for node in cluster.group.nodes for code in node.codes()]
    assert RequestCode.CONSUMER_SEND_MSG_BACK not in codes
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in codes
    assert not cluster.group.offsets
