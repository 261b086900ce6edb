"""A replica whose log contradicts its leader's sets it aside, and takes the log of the others."""

import asyncio
import errno
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from node_group import DEADLINE_S, SEGMENT_BYTES, Group, Journal, alone, leading, until

from dledger import Node, reopening
from dledger.core.messages import Append, InstallSnapshot, Message
from dledger.errors import ContradictionError
from dledger.format import HEADER_BYTES, seal
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId

TRIES = 10
SUCCESSOR = ReplicaId("n1", "x")


def other_entry(of: EntryMeta) -> tuple[EntryMeta, bytes]:
    """Return an entry of the same index, term, position and size with other bytes."""
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
    """An acknowledgement of one leader's entry must not count for another leader of the same term.

    One term had two leaders, since a node forgot its vote.
    """
    async with leading(tmp_path) as node:
        await node.append(b"ours")
        store = node.replica.store
        last, before = store.meta(store.last_index), store.meta(store.last_index - 1)
        node.replica.on_message(SUCCESSOR, *message(last, before))
        failure = node.replica.failure
    assert isinstance(failure, ContradictionError)
    assert f"up to index {last.index} of term {last.term}" in str(failure)


async def test_distant_entries_of_a_deposed_leader_do_not_end_the_node(tmp_path: Path):
    """The entries may lie far behind this log's end.

    They follow an index that is committed here with another entry, so their position does not fit this log.
    """
    async with leading(tmp_path) as node:
        await node.append(b"committed")
        engine = node.replica.engine
        entry = bytearray(HEADER_BYTES) + b"lost"
        term, index = engine.term - 1, engine.commit_index
        seal(entry, EntryKind.GROUP, index + 1, term, 10 * SEGMENT_BYTES + 4096, 0, 0)
        node.replica.on_message(ReplicaId("n1", "x"), Append(term, index, term, 0, count=1), bytes(entry))
        assert node.status().failure is None
        await node.append(b"after")


async def test_a_contradicted_node_on_a_full_disk_ends_with_an_error_and_can_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    node = Node(alone(tmp_path), Journal())
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
    async with leading(tmp_path):
        pass


async def test_a_snapshot_of_the_same_index_and_term_with_other_bytes_below_is_no_match(tmp_path: Path):
    async with leading(tmp_path) as node:
        await node.append(b"ours")
        store = node.replica.store
        last = store.meta(store.last_index)
        theirs, _ = other_entry(last)
        theirs_is_last = last.index, last.term, theirs.chain_crc
        install = InstallSnapshot(last.term + 1, 0, *theirs_is_last, Membership((SUCCESSOR,)), 0)
        with pytest.raises(ContradictionError, match="other bytes"):
            node.replica._inbox._step_install(
                SUCCESSOR, install, install.snapshot
            )  # the call that follows when the snapshot's bytes have arrived


async def with_older_copies(directory: Path) -> tuple[Group, int]:
    """Return a group without its third node, which alone has the last 20 entries, and the term of these entries.

    The other two nodes run on older copies of their directories, and have appended three entries since.
    """
    group = Group(directory / "group")
    await group.start_with(5)
    await group.stop()
    older = {name: copytree(group.home(name), directory / f"older-{name}") for name in ("n0", "n1")}
    await group.start_with(20)
    term = (await group.leader()).term
    await group.stop()
    for name, copy in older.items():
        rmtree(group.home(name))
        copytree(copy, group.home(name))
    await group.start("n0", "n1")
    await group.append(3, size=500)
    return group, term


async def test_a_contradicted_replica_rejoins_as_a_new_incarnation_with_the_groups_log(tmp_path: Path):
    """Two nodes run on older copies of their directories. The third still has the entries that were committed later."""
    for number in range(TRIES):
        group, term = await with_older_copies(tmp_path / str(number))
        # The copies hold older votes too, so the term repeats unless the elections took several terms.
        if (await group.leader()).term == term:
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
