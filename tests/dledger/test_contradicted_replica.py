"""A replica whose log is not its leader's sets it aside, and comes back from the others with theirs."""

import asyncio
import errno
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from node_group import DEADLINE_S, SECRET, SEGMENT_BYTES, Group, Journal, until

from dledger import Node, NodeConfig, reopening
from dledger.core.messages import Append, InstallSnapshot, Message
from dledger.errors import ContradictionError
from dledger.format import HEADER_BYTES, seal
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId

TRIES = 10
SUCCESSOR = ReplicaId("n1", "x")


def other_entry(of: EntryMeta) -> tuple[EntryMeta, bytes]:
    """An entry of the same index, term, place and size with other bytes."""
    entry = bytearray(HEADER_BYTES) + b"?" * (of.size - HEADER_BYTES)
    meta = seal(entry, EntryKind.GROUP, of.index, of.term, of.position, 0, 0)
    return meta, bytes(entry)


def with_the_entry(last: EntryMeta, before: EntryMeta) -> tuple[Message, bytes]:
    _, entry = other_entry(last)
    return Append(last.term + 1, before.index, before.term, -1, 1, before.chain_crc), entry


def behind_the_entry(last: EntryMeta, _: EntryMeta) -> tuple[Message, bytes]:
    meta, _ = other_entry(last)
    return Append(last.term + 1, last.index, last.term, -1, 0, meta.chain_crc), b""


@pytest.mark.parametrize("message", [with_the_entry, behind_the_entry])
async def test_an_entry_of_the_same_index_and_term_with_other_bytes_is_no_match(tmp_path: Path, message):
    """Two leaders were of one term, as where a node forgot its vote: acknowledging one's entry must not count for
    the other's.
    """
    config = NodeConfig("c", "g", "n0", tmp_path, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)
    async with Node(config, Journal()) as node:
        await until(lambda: node.is_ready)
        await node.append(b"ours")
        store = node.replica.store
        last, before = store.meta(store.last_index), store.meta(store.last_index - 1)
        node.replica.on_message(SUCCESSOR, *message(last, before))
        failure = node.replica.failure
    assert isinstance(failure, ContradictionError)
    assert f"up to index {last.index} of term {last.term}" in str(failure)


async def test_on_a_full_disk_its_node_ends_all_the_same_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = NodeConfig("c", "g", "n0", tmp_path, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)
    node = Node(config, Journal())
    await node.start()
    await until(lambda: node.is_ready)
    node.replica.failure = ContradictionError("its log is another one")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(reopening, "set_aside", full)
        with pytest.raises(OSError, match="No space left"):
            await node.stop()
    await node.stop()
    async with Node(config, Journal()) as again:
        await until(lambda: again.is_ready)


async def test_a_snapshot_of_the_same_index_and_term_with_other_bytes_below_is_no_match(tmp_path: Path):
    config = NodeConfig("c", "g", "n0", tmp_path, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)
    async with Node(config, Journal()) as node:
        await until(lambda: node.is_ready)
        await node.append(b"ours")
        store = node.replica.store
        last = store.meta(store.last_index)
        theirs, _ = other_entry(last)
        install = InstallSnapshot(
            last.term + 1, 0, last.index, last.term, theirs.chain_crc, Membership((SUCCESSOR,)), 0
        )
        with pytest.raises(ContradictionError, match="other bytes"):
            node.replica._inbox._step_install(
                SUCCESSOR, install, install.snapshot
            )  # as once the snapshot's bytes have arrived


async def with_older_copies(directory: Path) -> tuple[Group, int]:
    """A group without its third node, which alone has the last 20 entries; and the term of these.

    The others are back at older copies of their directories, with three entries since.
    """
    group = Group(directory / "group")
    await group.start()
    await group.append(5)
    await group.settled()
    await group.stop()
    older = {name: copytree(group.home(name), directory / f"older-{name}") for name in ("n0", "n1")}
    await group.start()
    await group.append(20)
    await group.settled()
    term = (await group.leader()).term
    await group.stop()
    for name, copy in older.items():
        rmtree(group.home(name))
        copytree(copy, group.home(name))
    await group.start("n0", "n1")
    await group.append(3, size=500)
    return group, term


async def test_it_comes_back_as_another_incarnation_with_the_log_of_the_others(tmp_path: Path):
    """Two nodes were put back to older copies of their directories; the third still has what they committed since."""
    for number in range(TRIES):
        group, term = await with_older_copies(tmp_path / str(number))
        if (await group.leader()).term == term:  # their votes were put back, too; but elections may take some terms
            break
        await group.stop()
    else:
        pytest.fail(f"{TRIES} groups of which none had two leaders in one term")
    await group.start("n2")
    contradicted = group.nodes["n2"]
    before = contradicted.replica.me
    async with asyncio.timeout(DEADLINE_S):
        assert isinstance(await contradicted.wait_failed(), ContradictionError)
    await group.append(3)
    assert contradicted.replica.failure is not None
    await group.stop("n2")
    await group.start("n2")
    await group.append(3)
    await group.settled()
    assert group.machines["n2"].count == 5 + 3 + 3 + 3
    assert group.same_state()
    assert group.nodes["n2"].replica.me.incarnation != before.incarnation
    assert group.nodes["n2"].replica.me in (await group.leader()).membership.members
    assert (group.home("n2") / "aside-0" / "commitlog").is_dir(), "what it had is kept for whoever wants to look"
    await group.stop()
    assert {report.last_index for report in group.verified()} == {group.metas("n0")[-1].index}
