"""A rescue lets one survivor continue alone.

No node of the earlier incarnation comes back, and a copy becomes another group.
"""

import shutil
import uuid
from pathlib import Path
from unittest.mock import Mock

import pytest
from node_group import SEGMENT_BYTES, Group, Journal, until

from dledger import Node
from dledger.replica.start import rescue as rescue_module
from dledger.replica.start.rescue import look, rescue
from dledger.store.disk import OsDisk
from dledger_base.loop_guard import excepted

pytestmark = pytest.mark.usefixtures("soon_replaced")


def no_command(identity: str, replaces: bool) -> bytes:
    _ = identity, replaces
    return b""


def rescued(group: Group, node_id: str, *, as_copy: bool = False, home: Path | None = None) -> str:
    home = home or group.home(node_id)
    config = group.config(node_id, data_dir=home).replica
    with excepted("no node runs here"):
        return rescue(OsDisk(str(home)), config, no_command, lambda: uuid.uuid4().hex, boot_id="", as_copy=as_copy)


async def test_a_rescued_survivor_leads_alone_and_accepts_only_emptied_nodes(tmp_path: Path, caplog):
    group = Group(tmp_path)
    await group.start_with(200)
    before = group.machines["n0"].digest()
    await group.stop()
    copy = tmp_path / "copy"
    shutil.copytree(group.home("n0"), copy)
    with excepted("no node runs here"):
        end = look(OsDisk(str(group.home("n0"))), "n0")
    founding = end.identity.group_id
    assert end.last_index == end.durable_index
    assert sorted(voter.node_id for voter in end.membership.voters) == group.ids
    assert rescued(group, "n0") == f"{founding}.2"
    await group.start("n0")
    leader = await group.leader()
    assert leader.status().voters == ["n0"]
    assert leader.status().group_identity == f"{founding}.2"
    assert group.machines["n0"].digest() == before, "nothing that it had is lost"
    await group.start("n1")
    await until(lambda: "the group was rescued without" in caplog.text, "a lost voter is refused by name")
    await group.append(5)
    assert leader.status().voters == ["n0"]
    await group.stop("n1")
    shutil.rmtree(group.home("n1"))
    await group.start("n1")
    await until(lambda: leader.status().voters == ["n0", "n1"], "an emptied one joins")
    await group.agrees()
    await group.stop()
    other = rescued(group, "n0", as_copy=True, home=copy)
    assert other != founding
    alone = Node(group.config("n0", data_dir=copy), Journal())
    await alone.start()
    try:
        await until(lambda: alone.is_ready, "the copy leads a group of its own")
        assert alone.status().voters == ["n0"]
    finally:
        await alone.stop()


async def test_a_rotten_header_makes_no_log_look_shorter_than_its_durable_mark(tmp_path: Path):
    group = Group(tmp_path)
    await group.start_with(200)
    await group.stop()
    with excepted("no node runs here"):
        before = look(OsDisk(str(group.home("n0"))), "n0")
    metas = group.metas("n0")
    last_segment = metas[-1].position // SEGMENT_BYTES
    rotten_entry = next(meta for meta in metas if meta.position // SEGMENT_BYTES == last_segment)
    group.flip_bit("n0", rotten_entry.position + 1)
    with excepted("no node runs here"):
        rotten = look(OsDisk(str(group.home("n0"))), "n0")
    assert rotten.durable_index == before.last_index
    assert (rotten.progress, rotten.end_position) == (before.progress, before.end_position)


async def test_a_rescue_that_is_cut_short_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    group = Group(tmp_path)
    await group.start()
    await group.append(20)
    await group.stop()
    with monkeypatch.context() as patch:
        patch.setattr(rescue_module, "write_identity", Mock(side_effect=OSError("cut short")))
        with pytest.raises(OSError, match="cut short"):
            rescued(group, "n0")
    assert rescued(group, "n0").endswith(".2")
    await group.start("n0")
    assert (await group.leader()).status().voters == ["n0"]
    await group.append(1)
    await group.stop()
