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
    ("keys", "text"),
    [
        ({"nodeid": "x"}, "unknown key 'nodeid', did you mean 'node_id'"),
        ({"max_connectons": 5}, "did you mean 'max_connections'"),
        ({"port": "10911"}, "port = '10911', expected a whole number"),
        ({"port": True}, "port = True, expected a whole number"),
        ({"port": 70_000}, "port = 70000 is outside 1..65535"),
        ({"auto_create_topic": 1}, "auto_create_topic = 1, expected true or false"),
        ({"flush": "never"}, "flush = 'never', expected 'sync'"),
        ({"broker_group": "a b"}, "broker_group = 'a b'"),
        ({"host": "0.0.0.0"}, "advertised_host is missing while host = '0.0.0.0'"),
        ({"port": 10_000, "peer_port": 10_000}, "peer_port = 10000 is already port"),
        ({"heartbeat_ms": 600}, "heartbeat_ms = 600 must be below election_min_ms = 500"),
        ({"heartbeat_ms": 251}, "heartbeat_ms = 251 must be at most half of election_min_ms = 500"),
        ({"register_period_ms": 20_000}, "name servers would drop this node"),
        ({"namesrv": ["names..example:9876"]}, "namesrv = 'names..example:9876', 'names..example' is no host name"),
        ({"namesrv": ["localhost"]}, "namesrv = 'localhost', expected \"host:port\""),
        ({"peers": {"n2": "10.0.0.1:1"}}, "peers.n2 = '10.0.0.1:1', expected exactly one key"),
        ({"peers": {"broker-a-n1": {"address": "10.0.0.1:1"}}, "secret_file": "s"}, "is this node itself"),
        ({"brokerName": "other"}, "brokerName = 'other' contradicts broker_group = 'broker-a'"),
        ({"enableDLegerCommitLog": False}, "always replicates by Raft"),
        ({"flushDiskType": "SOMETIMES"}, "expected SYNC_FLUSH or ASYNC_FLUSH"),
        ({"data_dir": ""}, "expected a path"),
    ],
)
def test_a_configuration_error_names_key_value_and_expectation(keys: dict[str, ConfigValue], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config({**MINIMAL, **keys})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", MINIMAL)
def test_a_missing_required_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        build_config({name: value for name, value in MINIMAL.items() if name != key})


def test_an_absent_or_invalid_configuration_file_is_refused(tmp_path: Path) -> None:
    minimal = b"brokerName=a\ndLegerSelfId=n0\nstorePathRootDir=d\n"
    for name, content, said in (
        ("absent.toml", None, r"absent.toml cannot be read: No such file or directory$"),
        ("binary.toml", b"port = 1\n\xff", "is no text in UTF-8, at byte 9"),
        ("bad.toml", b"port = ", "is not TOML"),
        ("bad.conf", minimal + b"listenPort=--5", "expected a whole number"),
        ("bad.conf", b"port", "expected key=value"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            load_config(tmp_path / name)


def test_dangerous_configurations_are_warned_about() -> None:
    config = build_config({**MINIMAL, "host": "0.0.0.0", "advertised_host": "10.0.0.1", "flush": "async"})
    warnings = "\n".join(config.warnings())
    assert "access control is off" in warnings
    assert "a power loss of several nodes can lose" in warnings
    assert not [
        line for line in build_config({**MINIMAL, "namesrv": ["127.0.0.1:9876"]}).warnings() if "namesrv" not in line
    ]


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
