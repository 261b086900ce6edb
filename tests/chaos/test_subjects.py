"""Both subjects keep one map on three processes, and answer as their protocol demands."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dledger_chaos.subjects.client import SubjectClient
from dledger_chaos.subjects.config import read_config
from dledger_chaos.subjects.group import Kind, SubjectGroup, running
from dledger_chaos.subjects.registers import RegisterMap, Result, encode_command

pytestmark = pytest.mark.long

TIMEOUT_S = 30.0


@pytest_asyncio.fixture(params=["register_node", "pysyncobj_node"])
async def group(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SubjectGroup]:
    kind: Kind = request.param
    with running(SubjectGroup(kind, tmp_path)) as started:
        yield started


def test_a_key_is_a_register_until_it_is_appended_to() -> None:
    state = RegisterMap()
    assert state.apply(encode_command("cas", "x", [None, 1])) == Result(ok=True, value=True)
    assert state.apply(encode_command("cas", "x", [7, 2])) == Result(ok=True, value=False)
    assert state.apply(encode_command("write", "x", {"a": [1]})) == Result(ok=True)
    assert [state.apply(encode_command("append", "l", value)).value for value in "ab"] == [0, 1]
    refused = state.apply(encode_command("write", "l", 1))
    assert (refused.ok, state.read("l"), state.read("x"), state.read("y")) == (False, ["a", "b"], {"a": [1]}, None)


def test_a_dump_is_the_whole_state() -> None:
    state, copy = RegisterMap(), RegisterMap()
    for command in (encode_command("write", "x", 1), encode_command("append", "l", "a")):
        state.apply(command)
    copy.load(json.loads(json.dumps(state.dump())))
    assert (copy.dump(), copy.digest) == (state.dump(), state.digest)
    copy.apply(encode_command("append", "l", "b"))
    assert copy.digest != state.digest
    assert state.read("l") == ["a"]


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_wrong_configuration_names_the_key(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"node.{ending}"
    path.write_text('node_id = "a"\nport = 1\n' if ending == "toml" else '{"node_id": "a", "port": 1}')
    with pytest.raises(ValueError, match="port"):
        read_config(path)


async def test_three_processes_agree_and_outlive_a_killed_leader(group: SubjectGroup) -> None:
    leader = await group.leader(voters=3)
    async with SubjectClient(group.client_addresses[leader]) as client:
        calls = (
            ("write", "x", 1),
            ("cas", "x", [1, 2]),
            ("cas", "x", [1, 3]),
            ("append", "l", "v"),
            ("append", "l", "w"),
        )
        answers = [await client.call(*call, timeout_s=TIMEOUT_S) for call in calls]
        assert [(answer.ok, answer.value) for answer in answers] == [
            (True, value) for value in (None, True, False, 0, 1)
        ]
        refused = await client.call("write", "l", 1, timeout_s=TIMEOUT_S)
        assert (refused.ok, refused.outcome) == (False, "fail")
        malformed = await client.call("cas", "x", 5, timeout_s=TIMEOUT_S)
        assert (malformed.ok, malformed.outcome) == (False, "fail")
    group[leader].kill()
    successor = await group.leader(voters=3)
    assert successor != leader
    async with SubjectClient(group.client_addresses[successor]) as client:
        assert (await client.call("read", "x", timeout_s=TIMEOUT_S)).value == 2
        assert (await client.call("read", "l", timeout_s=TIMEOUT_S)).value == ["v", "w"]
    group[leader].start()
    async with asyncio.timeout(TIMEOUT_S):
        while len(await _histories(group)) != 1:  # noqa: ASYNC110 - no event reports on another process
            await asyncio.sleep(0.02)


async def _histories(group: SubjectGroup) -> set[object]:
    """Return the distinct histories of the nodes, plus one for each node that does not answer."""
    found: set[object] = set()
    for name in group.node_ids:
        async with SubjectClient(group.client_addresses[name]) as client:
            answer = await client.call("dump", timeout_s=1.0)
            found.add(answer.value["history"] if isinstance(answer.value, dict) else name)
    return found


async def test_a_follower_names_the_leader_or_takes_the_operation(group: SubjectGroup) -> None:
    leader = await group.leader(voters=3)
    follower = next(name for name in group.node_ids if name != leader)
    async with SubjectClient(group.client_addresses[follower]) as client:
        answer = await client.call("write", "x", 1, timeout_s=TIMEOUT_S)
    assert answer.ok or (answer.outcome, answer.leader) == ("fail", leader)


async def test_an_unanswered_write_has_an_unknown_outcome(group: SubjectGroup) -> None:
    leader = await group.leader(voters=3)
    async with SubjectClient(group.client_addresses[leader]) as client:
        assert (await client.call("write", "x", 1, timeout_s=TIMEOUT_S)).ok
        for name in group.node_ids:
            if name != leader:
                group[name].kill()
        call = asyncio.create_task(client.call("write", "x", 2, timeout_s=TIMEOUT_S))
        await client.call("status", timeout_s=TIMEOUT_S)
        group[leader].kill()
        answer = await call
        assert (answer.ok, answer.outcome) == (False, "info")
        gone = await client.call("read", "x", timeout_s=1.0)
        assert (gone.ok, gone.outcome) == (False, "fail")
