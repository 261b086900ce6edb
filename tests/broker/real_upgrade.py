"""Upgrade of real processes from an older build: `OLD_REF=… .venv/bin/python -m pytest tests/broker/real_upgrade.py`.

What `test_upgrade_under_load` shows with nodes that only tell fewer command kinds is shown with the code of a commit
from before the features: three of its nodes become nodes of this checkout, one after the other, under load. What is new
is refused with a text until the last one is upgraded, and works then. A node that goes back ends with a text.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from broker_in_process import Client
from test_upgrade_under_load import REFUSED, RETRIED, every_request_without_accounts, stored

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from tests.recorded.mixed_group import ROOT, Build, MixedError, MixedGroup, NodeProcess, until, work_tree

MORE = 50
PATIENCE_S = 30.0
PAUSE_S = 0.02
TOPIC = {
    "topic": "T1",
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}


class Load:
    """Sends, pulls and commits through every node in turn, whatever becomes of the nodes."""

    def __init__(self, nodes: list[NodeProcess]) -> None:
        self._nodes = nodes
        self._stops = False
        self.acknowledged: list[bytes] = []
        self.committed = 0
        self.refused: list[RemotingCommand] = []
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number, last = 0, time.monotonic()
        while not self._stops:
            node, body = self._nodes[number % len(self._nodes)], b"load %d" % number
            number += 1
            with suppress(OSError, TimeoutError):  # the node restarts: whether it is stored nobody knows
                client = await Client.connect(node.port)
                try:
                    answer = await client.send(body)
                    self._note(answer)
                    if answer.code == ResponseCode.SUCCESS:
                        self.acknowledged.append(body)
                        now = time.monotonic()
                        self.longest_s, last = max(self.longest_s, now - last), now
                    await self._consume(client)
                finally:
                    client.close()
            await asyncio.sleep(PAUSE_S)

    async def _consume(self, client: Client) -> None:
        """Read the newest message and commit behind it."""
        pulled = await client.pull(max(0, len(self.acknowledged) - 1))
        self._note(pulled)
        where = {"consumerGroup": "load-readers", "topic": "T1", "queueId": "0"}
        committed = await client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET, where | {"commitOffset": str(self.committed + 1)}
        )
        self._note(committed)
        self.committed += committed.code == ResponseCode.SUCCESS

    def _note(self, answer: RemotingCommand) -> None:
        if answer.code not in {0, 19, 20, 21, *RETRIED} and answer.ext.get("outcome") != "unknown":
            self.refused.append(answer)

    async def reaches(self, count: int) -> None:
        """Wait until so many more are acknowledged: the group takes messages."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < wanted:  # noqa: ASYNC110 - a client sees answers alone
                await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        self._stops = True
        await self._task


async def every_new_request(node: NodeProcess) -> dict[str, RemotingCommand]:
    """What became of requests to a node that the older build does not know, by their names."""
    client = await Client.connect(node.port)
    answers = await every_request_without_accounts(client)
    client.close()
    return answers


async def upgraded(node: NodeProcess, group: MixedGroup, build: Build) -> None:
    """Stop a node and start it with another build, until it has applied the whole log."""
    await asyncio.to_thread(node.stop)
    node.build = build
    node.start(bootstrap=False)
    await asyncio.to_thread(until, lambda: node.status() is not None and group.leader() is not None, f"{node} serves")


async def all_works(node: NodeProcess) -> None:
    """Wait until the last feature is active, and check that every new request is taken."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answers = await every_new_request(node)
            if all(answer.code != ResponseCode.SYSTEM_BUSY for answer in answers.values()):
                break
            await asyncio.sleep(PAUSE_S)
    for what, answer in answers.items():
        if what in REFUSED:
            assert REFUSED[what] in (answer.remark or ""), (what, answer)
        else:
            assert answer.code == ResponseCode.SUCCESS, (what, answer)


async def come_in_time(node: NodeProcess, bodies: set[bytes]) -> None:
    """Every message that was acknowledged is there, delayed ones too once they are due."""
    client = await Client.connect(node.port)
    async with asyncio.timeout(PATIENCE_S):
        while bodies - set(await stored(client)):  # noqa: ASYNC110 - a client sees answers alone
            await asyncio.sleep(PAUSE_S)
    client.close()


async def test_an_older_group_is_upgraded_under_load_and_does_not_go_back(tmp_path: Path) -> None:
    with work_tree(os.environ["OLD_REF"], tmp_path / "old") as old:
        new = Build("new", ROOT)
        old.check()
        new.check()
        group = MixedGroup(tmp_path, [old, old, old])
        with group.running():
            await upgrade(group, new)
            await go_back(group, old)


async def upgrade(group: MixedGroup, new: Build) -> None:
    """One node after another, under load."""
    client = await Client.connect(group.nodes[0].port)
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == ResponseCode.SUCCESS
    put = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP
    assert (await client.call(put, {}, b'{"groupName":"load-readers"}')).code == ResponseCode.SUCCESS
    client.close()
    load = Load(group.nodes)
    try:
        await load.reaches(MORE)
        for number, node in enumerate(group.nodes):
            await upgraded(node, group, new)
            await load.reaches(MORE)
            if number + 1 == len(group.nodes):
                break
            answers = await every_new_request(node)  # an older node still leads, and answers as it always has
            assert ResponseCode.SUCCESS not in {
                answers[what].code for what in ("delayed send", "half send", "send-back")
            }
            await asyncio.to_thread(group.have_lead, node)
            for asked in group.nodes[: number + 1]:
                for what, answer in (await every_new_request(asked)).items():
                    assert answer.code == ResponseCode.SYSTEM_BUSY, (what, answer)
                    assert "is not active in this group yet" in (answer.remark or ""), (what, answer)
                    assert group.nodes[-1].node_id in (answer.remark or ""), (what, "names who is to be upgraded")
            await load.reaches(MORE)
        await all_works(group.nodes[0])
        await load.reaches(MORE)
    finally:
        await load.stop()
    assert load.refused == []
    await come_in_time(group.nodes[1], {*load.acknowledged, b"later"})
    print(
        f"{len(load.acknowledged)} sends acknowledged, {load.committed} commits, longest pause {load.longest_s:.2f} s"
    )


async def go_back(group: MixedGroup, old: Build) -> None:
    """A follower of the older build ends and says why; the group goes on, and it comes back with the new build."""
    leader = await asyncio.to_thread(group.leader)
    follower = next(node for node in group.nodes if node is not leader)
    new = follower.build
    await asyncio.to_thread(follower.stop)
    follower.build = old
    follower.start(bootstrap=False)
    text = await asyncio.to_thread(failure_of, follower)
    assert "upgrade" in text
    await upgraded(follower, group, new)
    client = await Client.connect(follower.port)
    assert (await client.send(b"after")).code == ResponseCode.SUCCESS
    client.close()


def failure_of(node: NodeProcess) -> str:
    """What a node says that ends or fails."""

    def goes_on() -> bool:
        node.status()  # raises once it has ended or failed
        return False

    with pytest.raises(MixedError) as ended:
        until(goes_on, "it ends")
    return str(ended.value)
