"""Upgrade of real processes from an older build: `OLD_REF=… .venv/bin/python -m pytest tests/broker/real_upgrade.py`.

In `test_upgrade_under_load`, older nodes are nodes that tell fewer command kinds. Here they run the code of a commit
from before the features. Three of them become nodes of this checkout, one after the other, under load. New requests are
refused with a text until the last node is upgraded, and work then. A node that goes back ends with a text.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from broker_in_process import Client
from test_upgrade_under_load import REFUSED, RETRIED, TurnsOfSends, every_request_without_accounts, stored

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from tests.recorded.mixed_group import ROOT, Build, MixedError, MixedGroup, NodeProcess, until, work_tree

MORE = 50
PATIENCE_S = 30.0
PAUSE_S = 0.02


class Load(TurnsOfSends):
    """Load of sends, pulls and commits through every node in turn, whatever the nodes do."""

    def __init__(self, nodes: list[NodeProcess]) -> None:
        self._nodes = nodes
        self.committed = 0
        self.longest_s = 0.0
        super().__init__()

    async def _run(self) -> None:
        number, last = 0, time.monotonic()
        while not self._stops:
            node, body = self._nodes[number % len(self._nodes)], b"load %d" % number
            number += 1
            with suppress(OSError, TimeoutError):  # the node restarts: nobody knows whether the message is stored
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
        """Read the newest message, and commit an offset that is higher by 1."""
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


async def every_new_request(node: NodeProcess) -> dict[str, RemotingCommand]:
    """Return the answers to the requests that the older build does not know, by name."""
    client = await Client.connect(node.port)
    answers = await every_request_without_accounts(client)
    client.close()
    return answers


async def upgraded(node: NodeProcess, group: MixedGroup, build: Build) -> None:
    """Stop a node, start it with another build, and wait until it answers and the group has a leader."""
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
    """Wait until every acknowledged message is there, also delayed messages, which come once they are due."""
    client = await Client.connect(node.port)
    async with asyncio.timeout(PATIENCE_S):
        while bodies - set(await stored(client)):  # noqa: ASYNC110 - a client sees only answers
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
    """Upgrade one node after another, under load."""
    client = await Client.connect(group.nodes[0].port)
    assert (await client.create_topic("T1", queues=1)).code == ResponseCode.SUCCESS
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
    """Check that a follower with the older build ends and says why.

    The group goes on, and the follower comes back with the new build.
    """
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
    """Return what a node says when it ends or fails."""

    def goes_on() -> bool:
        node.status()  # raises once it has ended or failed
        return False

    with pytest.raises(MixedError) as ended:
        until(goes_on, "it ends")
    return str(ended.value)
