"""A broker's configuration file is taken as it is written, or refused with a text that says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.addresses import Address
from dledger_broker.config import KEYS, BrokerConfig, build_config, load_config
from dledger_broker.errors import ConfigError

MINIMAL: dict[str, ConfigValue] = {"broker_group": "broker-a", "node_id": "broker-a-n1", "data_dir": "data"}


def test_missing_keys_follow_from_the_given_keys() -> None:
    config = build_config({**MINIMAL, "port": 20_000})
    assert (config.peer_port, config.http_port, config.advertised) == (20_001, 20_002, Address("127.0.0.1", 20_000))
    assert (config.peer_host, config.broker_id_when_follower, config.flush) == ("127.0.0.1", 2, "sync")


def test_a_toml_file_is_loaded_with_paths_addresses_and_peers(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        """
        broker_group = "broker-a"
        node_id = "broker-a-n0"
        data_dir = "data"
        secret_file = "/etc/secret"
        namesrv = ["127.0.0.1:9876", "[::1]:9877"]
        disk_max_used_ratio = 0.5
        [peers.broker-a-n1]
        address = "10.0.0.2:10912"
        """
    )
    config = load_config(path)
    assert config.data_dir == tmp_path / "data"
    assert config.secret_file == Path("/etc/secret")
    assert config.namesrv == (Address("127.0.0.1", 9876), Address("::1", 9877))
    assert config.peers == {"broker-a-n1": Address("10.0.0.2", 10912)}


def test_keys_of_broker_conf_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        """
        # pasted
        brokerClusterName=DefaultCluster
        brokerName=RaftNode00
        listenPort=30911
        brokerIP1=127.0.0.1
        namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
        storePathRootDir=/tmp/rmqstore
        enableDLegerCommitLog=true
        dLegerGroup=RaftNode00
        dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912
        dLegerSelfId=n0
        flushDiskType=ASYNC_FLUSH
        diskMaxUsedSpaceRatio=88
        brokerId=0
        deleteWhen=04
        """
    )
    with pytest.raises(ConfigError, match="secret_file is missing while peers lists n1"):
        load_config(path)
    path.write_text(path.read_text() + "\nsecret_file=secret\n")
    config = load_config(path)
    assert (config.broker_group, config.node_id, config.port, config.peer_port) == ("RaftNode00", "n0", 30911, 40911)
    assert config.peers == {"n1": Address("127.0.0.1", 40912)}
    assert len(config.namesrv) == 2
    assert (config.flush, config.disk_max_used_ratio) == ("async", 0.88)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"disk_max_used_ratio": 0.75}, "disk_max_used_ratio is set: disk_max_used_ratio = 0.75"),
        ({"diskMaxUsedSpaceRatio": 88}, "diskMaxUsedSpaceRatio is set: disk_max_used_ratio = 0.88"),
    ],
)
def test_a_configured_watermark_warns_of_its_changed_meaning(keys, said):
    config = build_config({**MINIMAL, **keys})
    (meaning,) = config.with_connections(10).changed_meanings()
    assert meaning.startswith(f"{said} no longer deletes unexpired messages")
    assert 'when_full = "refuse" counts' in meaning
    assert meaning in config.warnings()
    assert build_config({**MINIMAL, "when_full": "delete-oldest"}).changed_meanings() == []


@pytest.mark.parametrize(
    ("nodes", "ids"),
    [
        (("broker-a-n0", "broker-a-n1", "broker-a-n2"), (1, 2, 3)),
        (("a7", "a9", "b0"), (8, 10, 1)),
        (("east", "north", "west"), (1, 2, 3)),
        (("east-1", "north-1", "west-2"), (1, 2, 3)),
        (("a0", "b"), (1, 2)),
        (("n20261122103000", "n20261122103001", "n2"), (2, 3, 1)),
    ],
)
def test_no_two_nodes_of_a_group_have_one_broker_id_by_default(tmp_path: Path, nodes: tuple[str, ...], ids) -> None:
    found = []
    for node in nodes:
        peers = {other: Address("127.0.0.1", 1) for other in nodes if other != node}
        config = BrokerConfig(
            broker_group="g", node_id=node, data_dir=tmp_path, secret_file=tmp_path / "secret", peers=peers
        )
        found.append(config.broker_id_when_follower)
    assert tuple(found) == ids


def test_a_file_that_sets_a_limit_has_no_effect_and_is_told_so() -> None:
    config = build_config({**MINIMAL, "max_in_flight": 5, "max_connections": 7})
    assert (config.max_in_flight, config.max_connections) == (4_096, 7)
    (warning,) = config.ignored
    assert warning == "max_in_flight is set and has no effect: this limit is 4096 in every configuration"
    assert warning in config.with_connections(6).warnings()
    assert not {key.name for key in KEYS.settable} & {"max_in_flight", "max_filter_depth"}
    assert len(KEYS.by_name) - len(KEYS.settable) == 38
