"""A founding node asks its peers first, and two groups of one name never mix."""

import asyncio
import shutil
from types import SimpleNamespace
from typing import Any, cast

import pytest
from node_group import Group, Journal, until

from dledger import Node
from dledger.replica.start.inquiries import ANSWER, RETURNING_CHANNEL, FoundingInquiry, GroupKnowledge, encode_knowledge
from dledger.types import ReplicaId

pytestmark = pytest.mark.usefixtures("soon_replaced")


def bootstrapped(group: Group, node_id: str, *, alone: bool = False) -> Node:
    group.machines[node_id] = Journal()
    return Node(group.config(node_id, bootstrap=True, bootstrap_alone=alone), group.machines[node_id])


async def test_a_bootstrapping_node_joins_the_group_of_its_peers(group: Group, caplog):
    await group.start()
    await group.append(3)
    await group.stop("n0")
    shutil.rmtree(group.home("n0"))
    group.nodes["n0"] = bootstrapped(group, "n0")
    await group.nodes["n0"].start()
    await until(lambda: "n0" in (group.leaders and group.leaders[0].status().voters), "the node is a voter again")
    await group.agrees()
    assert "event=group_exists" in caplog.text


async def test_only_one_of_several_founders_founds_once_all_peers_answer(group: Group, caplog):
    for node_id in group.ids:
        shutil.rmtree(group.home(node_id))
    nodes = {node_id: bootstrapped(group, node_id) for node_id in group.ids}
    starts = [asyncio.ensure_future(nodes[node_id].start()) for node_id in ("n1", "n2")]
    await until(lambda: (nodes["n1"].waits_for or "").find(": no answer from n0.") > 0, "the silent peer is named")
    starts.append(asyncio.ensure_future(nodes["n0"].start()))
    await asyncio.gather(*starts)
    group.nodes.update(nodes)
    leader = await group.leader()
    await until(lambda: sorted(leader.status().voters) == group.ids, "the others have joined")
    founders = [n for n in group.nodes.values() if n.replica.own_group.directory.initial is not None]
    assert [node.config.node_id for node in founders] == ["n0"]


def test_an_answer_of_a_stranger_does_not_replace_a_silent_peers_answer():
    ended: list[bool] = []
    environment = SimpleNamespace(now=lambda: 0.0, call_later=lambda *_: None)
    founding = FoundingInquiry("n0", ["n1", "n2"], cast("Any", environment))
    founding.start(cast("Any", SimpleNamespace(send_data=lambda *_: True)), ended.append)
    for node_id in ("n1", "stranger", "n2"):
        assert not ended
        founding.on_data(ReplicaId(node_id, ""), RETURNING_CHANNEL, ANSWER + encode_knowledge(GroupKnowledge()))
    assert ended == [True]


async def test_a_second_founding_is_reported_on_both_sides_and_stops_no_group(group: Group, caplog):
    await group.start()
    await group.append(3)
    await group.stop("n0")
    shutil.rmtree(group.home("n0"))
    second = bootstrapped(group, "n0", alone=True)
    await second.start()
    try:
        await until(lambda: second.is_ready, "the second founder leads alone")
        await until(
            lambda: all(
                any(
                    f"node={node_id} " in line and "the group was founded twice under the same name" in line
                    for line in caplog.text.splitlines()
                )
                for node_id in group.ids
            ),
            "both sides say what is wrong",
        )
        await second.append(b"another history")
        await group.append(3)
        assert second.status().voters == ["n0"]
        assert sorted((await group.leader()).status().voters) == group.ids
    finally:
        await second.stop()
