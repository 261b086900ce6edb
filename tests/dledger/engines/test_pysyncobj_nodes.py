"""Real nodes with the engine around PySyncObj: they fail over, keep apart from others, and change their engine."""

from pathlib import Path

import msgspec
import pytest

from dledger.consensus.engine import EngineKind
from dledger.engines.named import engine_named
from dledger.engines.native import NATIVE
from dledger.engines.pysyncobj.engine import PySyncObjEngine
from dledger.engines.pysyncobj.kind import PYSYNCOBJ
from dledger.errors import ConfigError
from dledger.store.disk import OsDisk
from dledger.store.identity import read_identity, write_identity
from dledger.types import ENGINES
from tests.dledger.node_group import Group, until


def _convert(group: Group, engine: EngineKind, *ids: str) -> None:
    for node_id in ids or tuple(group.ids):
        disk = OsDisk(str(group.home(node_id)))
        identity = read_identity(disk)
        assert identity is not None
        write_identity(disk, msgspec.structs.replace(identity, engine=engine.name))
    group.engine = engine


def test_engines_have_the_names_by_which_they_are_found() -> None:
    assert [engine_named(name).name for name in ENGINES] == list(ENGINES)
    with pytest.raises(ConfigError, match="use one of 'native', 'pysyncobj'"):
        engine_named("raft")


async def test_nodes_fail_over_and_go_on_with_another_engine_and_back(tmp_path: Path) -> None:
    """Log, term, vote and snapshots are the same; nothing is lost and terms go on."""
    group = Group(tmp_path, engine=PYSYNCOBJ)
    terms = []
    try:
        for count, engine in enumerate((PYSYNCOBJ, NATIVE, PYSYNCOBJ), 1):
            _convert(group, engine)
            await group.start()
            await group.append(10)
            leader = await group.leader()
            assert isinstance(leader.replica.engine, PySyncObjEngine) is (engine is PYSYNCOBJ)
            await group.stop(leader.config.node_id)
            await group.append(10)
            await group.start(leader.config.node_id)
            await group.settled()
            assert {machine.count for machine in group.machines.values()} == {20 * count}
            terms.append((await group.leader()).replica.engine.term)
            await group.stop()
    finally:
        await group.stop()
    assert terms == sorted(set(terms))


async def test_a_node_with_the_native_engine_gets_no_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = Group(tmp_path, engine=PYSYNCOBJ)
    _convert(group, NATIVE, "n2")
    try:
        await group.start("n2")
        group.engine = PYSYNCOBJ
        await group.start("n0", "n1")
        await group.append(5)
        expected = "engine 'native' found, 'pysyncobj' expected"
        await until(lambda: any(expected in record.getMessage() for record in caplog.records), expected)
        await until(lambda: group.machines["n0"].count == group.machines["n1"].count == 5, "all entries on both")
        assert group.machines["n2"].count == 0
    finally:
        await group.stop()
