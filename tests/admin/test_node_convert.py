"""`dledger node convert` changes the engine of stopped nodes, and `up` starts all nodes with their engine."""

import os
import tomllib

import msgspec
import pytest
from click.testing import CliRunner

from dledger.store.disk import OsDisk
from dledger.store.identity import DirectoryLock, read_identity, write_identity
from dledger_admin.cli import main
from dledger_admin.cluster.bootstrap import complete_bootstrap, founding_manifest
from dledger_admin.cluster.config_files import Overrides, write_config_files
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.lifecycle import ClusterSetup, UpOptions, up_lock
from dledger_admin.cluster.manifest import read_manifest
from dledger_admin.errors import AdminError
from dledger_base.extras import DISTRIBUTION

NODES = ("broker-a-n0", "broker-a-n1", "broker-a-n2")


@pytest.fixture
def layout(tmp_path, ports) -> ClusterLayout:
    """Return a stopped cluster of the native engine."""
    base_port, namesrv_port = ports
    made = ClusterLayout(tmp_path / "cluster", 1, 3, namesrv_port, base_port)
    manifest = complete_bootstrap(made, founding_manifest(made, None, 1 << 20))
    write_config_files(made, manifest, Overrides())
    return made


def convert(layout: ClusterLayout, engine: str, node_id: str) -> tuple[int, str]:
    arguments = ["node", "convert", "--data", str(layout.data_dir), "--engine", engine, node_id]
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def identities(layout: ClusterLayout) -> list:
    return [read_identity(OsDisk(str(layout.data_dir / node_id))) for node_id in NODES]


def configured(layout: ClusterLayout, node_id: str) -> str:
    return tomllib.loads((layout.data_dir / node_id / "broker.toml").read_text())["engine"]


def up(layout: ClusterLayout, engine: str | None = None) -> ClusterSetup:
    return ClusterSetup.prepare(UpOptions(layout.data_dir, engine=engine))


def test_a_cluster_is_founded_with_an_engine(tmp_path, ports):
    base_port, namesrv_port = ports
    options = UpOptions(tmp_path / "new", 1, 3, namesrv_port, base_port, engine="pysyncobj")
    setup = ClusterSetup.prepare(options)
    complete_bootstrap(setup.layout, setup.manifest)
    write_config_files(setup.layout, setup.manifest, setup.overrides)
    assert {identity.engine for identity in identities(setup.layout)} == {"pysyncobj"}
    assert {configured(setup.layout, node_id) for node_id in NODES} == {"pysyncobj"}
    assert up(setup.layout).manifest.engine == "pysyncobj"
    with pytest.raises(AdminError, match="node convert"):
        up(setup.layout, "native")


def test_files_of_a_native_cluster_name_no_engine(layout):
    assert "engine" not in (layout.data_dir / "cluster.json").read_text()
    assert "engine" not in (layout.data_dir / NODES[0] / "identity.json").read_text()


def test_a_directory_of_another_founding_is_not_converted(layout):
    disk = OsDisk(str(layout.data_dir / NODES[1]))
    write_identity(disk, msgspec.structs.replace(read_identity(disk), group_id="0" * 32))
    code, output = convert(layout, "pysyncobj", NODES[1])
    assert code != 0
    assert f"group identity {'0' * 32} found" in output
    assert identities(layout)[1].engine == "native"


def test_every_node_is_converted_and_back(layout):
    before = identities(layout)
    files = {path: path.read_bytes() for path in layout.data_dir.rglob("*") if path.is_file()}
    for engine, was in (("pysyncobj", "native"), ("native", "pysyncobj")):
        for place, node_id in enumerate(NODES):
            code, output = convert(layout, engine, node_id)
            assert code == 0, output
            assert f"{node_id} has engine {engine}, which was {was}" in output
            remaining = ", ".join(NODES[place + 1 :])
            assert (f"still to be converted: {remaining}" if remaining else "all nodes have it") in output
            assert {configured(layout, other) for other in NODES} == {engine}, "no node starts by what it was"
        assert {identity.engine for identity in identities(layout)} == {engine}
        assert up(layout).manifest.engine == up(layout, engine).manifest.engine == engine
    assert identities(layout) == before
    assert {path: path.read_bytes() for path in files} == files


def test_a_conversion_can_be_repeated(layout):
    assert convert(layout, "pysyncobj", NODES[0])[0] == 0
    code, output = convert(layout, "pysyncobj", NODES[0])
    assert (code, f"{NODES[0]} has engine pysyncobj; still" in output) == (0, True)


def test_nothing_is_converted_while_a_node_runs_or_the_cluster_starts(layout):
    """During a start no node runs yet. Nodes that start next would read half-written files."""
    lock = DirectoryLock.acquire(str(layout.data_dir / NODES[1]), os.getpid())
    code, output = convert(layout, "pysyncobj", NODES[1])
    lock.release()
    assert (code, f"in use by the live process {os.getpid()}" in output) == (1, True)
    with up_lock(layout.data_dir):
        code, output = convert(layout, "pysyncobj", NODES[1])
    assert (code, "another `dledger up` holds" in output) == (1, True)
    assert {identity.engine for identity in identities(layout)} == {"native"}
    assert read_manifest(layout.data_dir).engine == "native"


def test_converting_a_missing_or_wiped_node_is_refused_with_the_reason(layout):
    code, output = convert(layout, "pysyncobj", "broker-z-n0")
    assert (code, "no node" in output) == (1, True)
    os.rename(layout.data_dir / NODES[0], layout.data_dir / "elsewhere")
    code, output = convert(layout, "pysyncobj", NODES[0])
    assert code == 1
    assert "gets its engine when it starts" in output


def test_the_engine_key_is_refused_in_an_override_file(layout, tmp_path):
    config = tmp_path / "more.toml"
    config.write_text('engine = "pysyncobj"\n')
    with pytest.raises(AdminError, match="--engine at the cluster's founding"):
        ClusterSetup.prepare(UpOptions(layout.data_dir, config=config))


def test_an_engine_that_is_not_installed_is_told_before_anything_is_made(layout, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith(("pysyncobj", "dledger.engines.pysyncobj"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pysyncobj", None)
    code, output = convert(layout, "pysyncobj", NODES[0])
    assert code == 1
    assert "pip install" in output
    assert DISTRIBUTION not in output, "no index has it"
    assert read_manifest(layout.data_dir).engine == "native"


def test_a_conversion_writes_the_cluster_manifest_first(layout, monkeypatch):
    """An interruption leaves nodes that refuse to start. No node runs with another engine than the others."""
    from dledger.store import identity

    def fails(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(identity, "write_identity", fails)
    assert convert(layout, "pysyncobj", NODES[0])[0] != 0
    assert read_manifest(layout.data_dir).engine == "pysyncobj"
    assert configured(layout, NODES[0]) == "pysyncobj"
