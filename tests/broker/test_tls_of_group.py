"""A group that has TLS keeps it: no line or file that is missing in a node's configuration opens that node."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from broker_in_process import node_config, until

from dledger.types import Membership, ReplicaId
from dledger_base.config_keys.declared import ConfigValue
from dledger_base.issuing import Authority
from dledger_broker.config import BrokerConfig, build_config
from dledger_broker.errors import ConfigError
from dledger_broker.features import FEATURES
from dledger_broker.features.access import job
from dledger_broker.features.access.job import AccessJob, withheld_kinds
from dledger_broker.features.access.table import ACCESS, TURN_TLS_ON, TurnPeerTlsOn, TurnTlsOn
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.node import Broker
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_broker.tls_fact import FACT_FILE, missing_tls, require_tls
from tests.broker.job_runs import run_of_a_job

AUTHORITY = Authority("a test", timedelta(days=1))


def config_of(**keys: ConfigValue) -> BrokerConfig:
    return build_config({"broker_group": "broker-a", "node_id": NODE_ID, "data_dir": "unused", **keys})


CERTIFICATE = {"tls_cert_file": "node.pem"}
SAID = {
    "enforcing": config_of(tls="enforcing", **CERTIFICATE),
    "peers": config_of(tls="enforcing", tls_peer_ca_file="ca.pem", **CERTIFICATE),
    "permissive": config_of(tls="permissive", **CERTIFICATE),
    "off": config_of(tls="off"),
    "nothing": config_of(),
    "off but peers": config_of(tls="off", tls_peer_ca_file="ca.pem", **CERTIFICATE),
}


@pytest.mark.parametrize(("members", "before", "after"), [
    (("enforcing", "enforcing", "enforcing"), (), (True, False)),
    (("peers", "peers", "peers"), (), (True, True)),
    (("peers", "peers", "enforcing"), (), (True, False)),
    (("enforcing", "enforcing", "permissive"), (), (False, False)),
    (("enforcing", "enforcing", "nothing"), (), (False, False)),
    (("off", "off", "off"), (TurnTlsOn(), TurnPeerTlsOn()), (False, False)),
    (("off", "off", "nothing"), (TurnTlsOn(), TurnPeerTlsOn()), (True, True)),
    (("off", "off", "off but peers"), (TurnTlsOn(), TurnPeerTlsOn()), (True, True)),
    (("off", "off", "permissive"), (TurnTlsOn(),), (True, False)),
])  # fmt: skip
def test_the_group_has_tls_once_all_members_say_so(
    members: tuple[str, ...], before: tuple[object, ...], after: tuple[bool, bool]
) -> None:
    broker = BrokerInMemory()
    machine = broker.machine
    for command in before:
        machine.stage_command(command, lambda _: None)
    ids = (NODE_ID, "n8", "n9")
    broker.node.membership = Membership(tuple(ReplicaId(node_id, node_id) for node_id in ids))
    for node_id, said in zip(ids, members, strict=True):
        kinds = tuple(kind for kind in machine.commands.kinds if kind not in withheld_kinds(SAID[said]))
        machine.stage_command(Features(node_id, kinds), lambda _: None)
    broker.env.run_ready()
    AccessJob(machine, SAID[members[0]]).run(run_of_a_job(broker))
    broker.env.run_ready()
    table = machine.state.table(ACCESS)
    assert (table.tls_since > 0, table.peer_tls_since > 0) == after


def test_a_member_of_an_earlier_version_keeps_the_fact_out_of_the_log() -> None:
    broker = BrokerInMemory()
    earlier = tuple(kind for kind in broker.machine.commands.kinds if kind < TURN_TLS_ON)
    broker.node.membership = Membership((ReplicaId(NODE_ID, "0"), ReplicaId("n8", "0")))
    broker.machine.stage_command(Features("n8", earlier), lambda _: None)
    broker.env.run_ready()
    end = broker.log.end
    AccessJob(broker.machine, SAID["peers"]).run(run_of_a_job(broker))
    broker.env.run_ready()
    assert broker.log.end == end


def test_snapshots_keep_the_fact() -> None:
    broker = BrokerInMemory()
    for command in (TurnTlsOn(), TurnPeerTlsOn()):
        broker.machine.stage_command(command, lambda _: None)
    broker.env.run_ready()
    state = broker.machine.state
    restored = decode_state(list(encode_state(state, 0.0)), 0.0, FEATURES)
    assert restored.digest() == state.digest()
    for name in ("since", "tls_since", "peer_tls_since"):
        assert getattr(restored.table(ACCESS), name) == getattr(state.table(ACCESS), name)


def test_what_a_configuration_lacks_is_named() -> None:
    assert "tls is missing" in (missing_tls(SAID["nothing"], ("clients",)) or "")
    assert "tls_peer_ca_file is missing" in (missing_tls(SAID["enforcing"], ("clients", "peers")) or "")
    for said in ("enforcing", "peers", "permissive", "off"):
        assert missing_tls(SAID[said], ("clients",)) is None, said
    assert missing_tls(SAID["peers"], ("clients", "peers")) is None
    assert missing_tls(SAID["off"], ("clients", "peers")) is None
    assert missing_tls(SAID["nothing"], ()) is None


async def test_a_node_without_the_tls_of_its_group_does_not_start_and_off_is_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "RETRY_S", 0.05)
    AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    files = {"tls_cert_file": str(tmp_path / "cert.pem"), "tls_key_file": str(tmp_path / "key.pem")}
    kept = tmp_path / "data" / FACT_FILE

    async def run(until_kept: str, *, bootstrap: bool = False, **keys: ConfigValue) -> None:
        broker = Broker(node_config(tmp_path, **keys), bootstrap=bootstrap)
        await broker.start()
        try:
            await until(lambda: kept.exists() and kept.read_text() == until_kept)
        finally:
            await broker.stop()

    await run("clients\n", bootstrap=True, tls="enforcing", **files)
    with pytest.raises(ConfigError, match=r"log of this node's group says .* say tls = .enforcing."):
        await Broker(node_config(tmp_path)).start()
    kept.unlink()
    unaware = Broker(node_config(tmp_path))
    await unaware.start()
    try:
        async with asyncio.timeout(60):
            assert "tls is missing" in str(await unaware.wait_failed())
        await until(kept.exists)
    finally:
        await unaware.stop()
    await run("\n", tls="off")
    await run("\n")


@pytest.mark.parametrize("content", [b"", b"cliXnts\n", b"\xff\xfe\n"])
def test_a_damaged_file_does_not_open_the_ports_for_clients(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FACT_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match="tls is missing"):
        require_tls(config_of(data_dir=str(tmp_path)))
    kept = require_tls(config_of(data_dir=str(tmp_path), tls="off"))
    assert kept not in {(), ("clients",), ("peers",), ("clients", "peers")}, "the file is written anew"
