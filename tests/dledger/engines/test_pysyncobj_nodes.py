"""Real nodes with the engine around PySyncObj fail over, stay apart from other engines, and can change their engine."""

from pathlib import Path

import msgspec
import pytest

from dledger.consensus.engine import EngineKind
from dledger.engines import named
from dledger.engines.named import NATIVE, engine_named
from dledger.engines.pysyncobj import PYSYNCOBJ
from dledger.engines.pysyncobj.engine import PySyncObjEngine
from dledger.errors import ConfigError, CorruptionError
from dledger.store.disk import OsDisk
from dledger.store.identity import read_identity, write_identity
from dledger.types import ENGINES
from tests.dledger.bad_sectors import BadSectors
from tests.dledger.node_group import Group, until


def _convert(group: Group, engine: EngineKind, *ids: str) -> None:
    for node_id in ids or tuple(group.ids):
        disk = OsDisk(str(group.home(node_id)))
        identity = read_identity(disk)
        assert identity is not None
        write_identity(disk, msgspec.structs.replace(identity, engine=engine.name))
    group.engine = engine


def test_engines_are_found_by_their_names() -> None:
    assert [engine_named(name).name for name in ENGINES] == list(ENGINES)
    with pytest.raises(ConfigError, match="use one of 'native', 'pysyncobj'"):
        engine_named("raft")


@pytest.mark.parametrize("found", ["0.3.9", "0.4.0", "none"])
def test_another_version_of_the_library_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(named, "pysyncobj_version", lambda: found)
    with pytest.raises(ConfigError, match=f"from 0.3.17 on and below 0.4, {found} is installed"):
        engine_named("pysyncobj")


async def test_nodes_fail_over_and_go_on_with_another_engine_and_back(tmp_path: Path) -> None:
    """Log, term, vote and snapshots have the same format in both engines. Nothing is lost, and terms continue."""
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


async def test_a_leader_whose_disk_loses_rewritten_bytes_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sectors = BadSectors(monkeypatch)
    sectors.heals = False
    async with Group(tmp_path, engine=PYSYNCOBJ, snapshot_interval_ms=3_600_000) as group:
        await group.append(60)
        await group.settled()
        leader = await group.leader()
        sectors.add(group.home(leader.config.node_id) / "commitlog" / f"{0:020d}", 20_480)
        with pytest.raises(CorruptionError):
            await leader.read(20_480, 100)
        await until(lambda: leader.replica.failure is not None)
        assert not leader.replica.engine.is_leader
        await group.append(1)
