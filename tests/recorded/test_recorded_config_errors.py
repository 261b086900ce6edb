"""Error texts about configurations stay the same.

The recording covers wrong values for every key of every component. It also covers keys that are unknown, missing or
contradict each other, and files that are no configuration. The formats are TOML and RocketMQ's `broker.conf` and
`namesrv.conf`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dledger.config import NodeConfig
from dledger.errors import ConfigError as LogConfigError
from dledger_base.config_keys.reading import Keys
from dledger_base.secret import read_secret
from dledger_broker import broker_conf
from dledger_broker import config as broker
from dledger_broker.config import BrokerConfig
from dledger_broker.config import load_config as load_broker_config
from dledger_broker.errors import ConfigError as BrokerConfigError
from dledger_namesrv import config
from dledger_namesrv import config as name_server
from dledger_namesrv.config import NameServerConfig
from tests.recorded.golden_files import compare

REFUSED = (BrokerConfigError, LogConfigError, name_server.ConfigError)

IN_TOML = (
    *("true", "0", "1", "-5", "70000", str(2**70), "0.5", "nan", "2026-01-31"),
    *('""', '" "', '"x"', '"a b"', '"0.0.0.0"', '"json"', '"7"', '"true"', '["x"]', "{n1 = 7}"),
)
ADDRESSES_IN_TOML = (
    *("[]", "[7]", '"x:0"', '["h:1", "[::1]:70000"]', '"h:1;h:2"', '"h..h:1"', '["[::1]:1"]', "{}"),
    *('{n1 = {address = "h"}}', '{n1 = {address = "h:1", port = 7}}', '{n0 = {address = "h:1"}}'),
    '{n1 = {address = "h:1"}}',
)
IN_PROPERTIES = (
    *("", "true", "false", "0", "-1", "-2", "7", "96", "70000", "0.5", "x", "a b", "SYNC_FLUSH", "sync", "h:1;h:2"),
    *("n0-h:1;n1-h:2", "n1", "n1-h", "-h:1", "n1-h:x", "n1-:1"),
)
MINIMAL = {"broker_group": '"g"', "node_id": '"n0"', "data_dir": '"data"'}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into a temporary directory, so that texts name files without a directory."""
    monkeypatch.chdir(tmp_path)


def refusal_of(load: Callable[[], object]) -> str | None:
    """Return the reason why a configuration is refused, or None if it is accepted."""
    try:
        load()
    except REFUSED as error:
        return str(error)
    return None


def quoted(key: str) -> str:
    """Return a key as TOML needs it: a bare key with dots would name tables."""
    return f'"{key}"' if "." in key else key


def broker_in(file: str, keys: Mapping[str, str], missing: str = "") -> str | None:
    """Return the error for a broker's file with `keys` and the required keys, without the file's name."""
    quote = str if file.endswith(".toml") else lambda value: value.strip('"')
    table = {key: quote(value) for key, value in MINIMAL.items() if key != missing} | dict(keys)
    name = quoted if file.endswith(".toml") else str
    Path(file).write_text("".join(f"{name(key)} = {value}\n" for key, value in table.items()), encoding="utf-8")
    said = refusal_of(lambda: load_broker_config(Path(file)))
    return None if said is None else said.removeprefix(f"{file}: ")


def name_server_in(keys: Mapping[str, str], file: str = "n.toml") -> str | None:
    """Return the error for a name server's file, without the file's name."""
    name = quoted if file.endswith(".toml") else str
    Path(file).write_text("".join(f"{name(key)} = {value}\n" for key, value in keys.items()), encoding="utf-8")
    said = refusal_of(lambda: name_server.load_config(Path(file), {}))
    return None if said is None else said.removeprefix(f"{file}: ")


def tried(keys: Iterable[str], values: Iterable[str], told: Callable[[Mapping[str, str]], str | None]) -> Iterator[str]:
    """Yield for every key the values that it accepts, and the errors for the others."""
    for key in keys:
        said = {value: told({key: value}) for value in values}
        yield f"== {key} takes {' '.join(value for value, text in said.items() if text is None) or 'none'}"
        yield from (f"{value} | {text}" for value, text in said.items() if text is not None)


def misspelled(keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        yield f"{key[:2]}{key[3:]}"
        yield f"x{key[::-1]}"


def stock_names(contradictions: Iterable[Mapping[str, str]], keys: Keys) -> list[str]:
    """Return RocketMQ's names of keys in the order of `contradictions`, which must contain each of them."""
    aliases = list(dict.fromkeys(name for names in contradictions for name in names if name in keys.aliases))
    assert set(aliases) == set(keys.aliases)
    return aliases


def test_values_of_a_broker() -> None:

    def told(given: Mapping[str, str]) -> str | None:
        return broker_in("b.toml", given)

    addresses = tried(("peers", "namesrv"), ADDRESSES_IN_TOML, told)
    compare("surfaces/config_broker", [*tried(broker.KEYS.by_name, IN_TOML, told), *addresses])


def test_values_of_a_name_server() -> None:
    keys = [field.name for field in fields(NameServerConfig)]
    lines = tried(keys, IN_TOML, name_server_in)
    aliases = stock_names(NAME_SERVER_CONTRADICTIONS, name_server.KEYS)
    compare("surfaces/config_name_server", [*lines, *tried(aliases, IN_TOML, name_server_in)])


def test_values_of_a_stock_file() -> None:
    keys = sorted((*broker.KEYS.aliases, *broker_conf.WITHOUT_EFFECT, "enableDLegerCommitLog"))
    compare("surfaces/config_broker_conf", tried(keys, IN_PROPERTIES, lambda given: broker_in("b.conf", given)))


def test_values_of_a_stock_file_of_a_name_server() -> None:
    keys = sorted((*name_server.KEYS.aliases, *config.WITHOUT_EFFECT, *config.IMPOSSIBLE))
    compare("surfaces/config_namesrv_conf", tried(keys, IN_PROPERTIES, lambda given: name_server_in(given, "n.conf")))


BROKER_CONTRADICTIONS: tuple[dict[str, str], ...] = (
    {"brokerClusterName": '"a"', "cluster": '"b"'},
    {"brokerName": '"a"'},
    {"brokerName": '"g"', "dLegerGroup": '"b"'},
    {"dLegerSelfId": '"b"'},
    {"brokerId": "3", "broker_id_when_follower": "4"},
    {"storePathRootDir": '"b"'},
    {"bindAddress": '"127.0.0.1"', "host": '"::1"'},
    {"listenPort": "10000", "port": "10001"},
    {"brokerIP1": '"10.0.0.1"', "advertised_host": '"10.0.0.2"'},
    {"namesrvAddr": '"h:1"', "namesrv": '["h:1"]'},
    {"flushDiskType": '"ASYNC_FLUSH"', "flush": '"sync"'},
    {"mappedFileSizeCommitLog": "2097152", "segment_bytes": "4194304"},
    {"messageDelayLevel": '"1s"', "delay_levels": '"2s"'},
    {"timerMaxDelaySec": "60", "timer_max_delay_s": "61"},
    {"autoCreateTopicEnable": "true", "auto_create_topic": "false"},
    {"autoCreateSubscriptionGroup": "true", "auto_create_group": "false"},
    {"regionId": '"a"', "region_id": '"b"'},
    {"traceTopicEnable": "true", "trace_topic": "false"},
    {"enablePropertyFilter": "true", "property_filter": "false"},
    {"enableRetryTopicV2": "true", "pop_retry_topic_v2": "false"},
    {"defaultMessageRequestMode": '"POP"', "default_request_mode": '"pull"'},
    {"defaultTopicQueueNums": "4", "default_topic_queues": "5"},
    {"maxMessageSize": "1", "max_message_bytes": "2"},
    {"fileReservedTime": "1", "retention_hours": "2"},
    {"diskMaxUsedSpaceRatio": "88", "disk_max_used_ratio": "0.87"},
    {"registerNameServerPeriod": "1000", "register_period_ms": "1001"},
    {"dLegerPeers": '"n0-h:1;n1-h:2"', "peer_port": "2"},
    {"dLegerPeers": '"n0-h:1"', "peers": '{n1 = {address = "h:1"}}'},
    {"heartbeat_ms": "500", "election_min_ms": "500"},
    {"heartbeat_ms": "251"},
    {"heartbeat_ms": "250"},
    {"election_min_ms": "1000", "election_max_ms": "1000"},
    {"register_period_ms": "1000", "register_timeout_ms": "1000"},
    {"max_message_bytes": "1024", "max_frame_bytes": "1024"},
    {"pause_outgoing_bytes": "1024", "max_outgoing_bytes": "1024"},
    {"max_partial_bytes": "33554431"},
    {"port": "1000", "peer_port": "1000"},
    {"port": "1000", "http_port": "1000"},
    {"port": "65535"},
    {"port": "65534"},
    {"peer_port": "1000", "http_port": "1000"},
    {"host": '"::"', "peer_host": '"0.0.0.0"'},
    {"advertised_host": '"0.0.0.0"'},
    {"tls": '"permissive"'},
    {"tls_client_certs": '"required"'},
    {"tls_http": "true"},
    {"tls_peer_ca_file": '"a"'},
    {"tls.server.mode": '"disabled"', "tls": '"enforcing"'},
    {"tls.server.certPath": '"a"', "tls_cert_file": '"b"'},
    {"tls.server.keyPath": '"a"', "tls_key_file": '"b"'},
    {"tls.server.trustCertPath": '"a"', "tls_client_ca_file": '"b"'},
    {"tls.server.need.client.auth": '"require"', "tls_client_certs": '"none"'},
    {"peers": '{n1 = {address = "h:1"}, n2 = {address = "h:2"}}'},
    {"node_id": '"broker-a-n2147483647"'},
    {"broker_group": f'"{"g" * 300}"'},
)


def test_keys_of_a_broker_that_do_not_go_together() -> None:
    told = [(list(keys), broker_in("b.toml", keys)) for keys in BROKER_CONTRADICTIONS]
    aliases = [name for name in stock_names(BROKER_CONTRADICTIONS, broker.KEYS) if name != "dLegerPeers"]
    lines = [f"{', '.join(keys)} | {text or 'taken'}" for keys, text in told]
    lines += [f"without {key} | {broker_in(file, {}, key)}" for file in ("b.toml", "b.conf") for key in MINIMAL]
    known = (*broker.KEYS.by_name, *aliases)
    lines += [f"unknown | {broker_in('b.toml', {key: '1'})}" for key in misspelled(known)]
    lines += [f"unknown | {broker_in('b.conf', {key: '1'})}" for key in misspelled(aliases)]
    compare("surfaces/config_broker_keys", lines)


NAME_SERVER_CONTRADICTIONS: tuple[dict[str, str], ...] = (
    {"listenPort": "1", "port": "2"},
    {"listenPort": "1", "port": "1"},
    {"bindAddress": '"a"', "host": '"b"'},
    {"scanNotActiveBrokerInterval": "10", "scan_interval_ms": "11"},
    {"serverChannelMaxIdleTimeSeconds": "10", "idle_timeout_ms": "10"},
    {"enableTopicList": "true", "enableAllTopicList": "false"},
    {"orderMessageEnable": "true", "order_message_enable": "false"},
    {"returnOrderTopicConfigToBroker": "true", "return_order_topic_config_to_broker": "false"},
    {"deleteTopicWithBrokerRegistration": "true", "delete_topic_with_broker_registration": "false"},
    {"port": "9000", "http_port": "9000"},
    {"http_port": "9876"},
    {"max_frame_bytes": "2048", "max_partial_bytes": "4095"},
    {"tls": '"permissive"'},
    {"tls_client_certs": '"required"'},
    {"tls.server.mode": '"disabled"', "tls": '"enforcing"'},
    {"tls.server.certPath": '"a"', "tls_cert_file": '"b"'},
    {"tls.server.keyPath": '"a"', "tls_key_file": '"b"'},
    {"tls.server.trustCertPath": '"a"', "tls_client_ca_file": '"b"'},
    {"tls.server.need.client.auth": '"require"', "tls_client_certs": '"none"'},
    {"namesrv": "7"},
    {"namesrv": "{prot = 1}"},
    {"namesrv": "{port = 1}", "anything": "7"},
)


def test_keys_of_a_name_server_that_do_not_go_together() -> None:
    aliases = stock_names(NAME_SERVER_CONTRADICTIONS, name_server.KEYS)
    lines = [f"{', '.join(keys)} | {name_server_in(keys) or 'taken'}" for keys in NAME_SERVER_CONTRADICTIONS]
    known = [*(field.name for field in fields(NameServerConfig)), *aliases]
    compare(
        "surfaces/config_name_server_keys",
        [*lines, *(f"unknown | {name_server_in({key: '1'})}" for key in misspelled(known))],
    )


def test_errors_of_unreadable_configuration_files_equal_the_recording() -> None:
    Path("folder.toml").mkdir()
    Path("latin.toml").write_bytes(b'# a\nnode_id = "\xe4"\n')
    Path("latin.conf").write_bytes(b"brokerName=\xe4\n")
    Path("table.toml").write_text("node_id\n", encoding="utf-8")
    Path("words.conf").write_text("# a\n\n! b\nbrokerName = x\nsome words\n", encoding="utf-8")
    names = ("absent.toml", "absent.conf", "folder.toml", "latin.toml", "latin.conf", "table.toml", "words.conf")
    loaders: dict[str, Callable[[Path], object]] = {
        "broker": load_broker_config,
        "name server": lambda path: name_server.load_config(path, {}),
    }
    lines = []
    for (of, load), name in itertools.product(loaders.items(), names):
        said = refusal_of(partial(load, Path(name)))
        lines.append(f"{of}: {without_tomls_own_words(said)}")
    compare("surfaces/config_files", lines)


def without_tomls_own_words(said: str | None) -> str:
    """Leave out the text of Python's TOML parser, which may change with Python."""
    if said is None:
        return "taken"
    for own in ("is not TOML: ", "not a TOML file: "):
        if own in said:
            return said.partition(own)[0] + own + "..."
    return said


SECRETS = {"absent": None, "short": (b"  secret \n", 0o600), "open": (b"s" * 32, 0o644), "good": (b"s" * 16, 0o400)}


def test_secrets() -> None:
    lines = []
    for name, made in SECRETS.items():
        if made is not None:
            Path(name).write_bytes(made[0])
            Path(name).chmod(made[1])
        lines.append(refusal_of(partial(read_secret, Path(name))) or f"{name} is taken")
    compare("surfaces/config_secrets", lines)


LOG_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"flush": "never"},
    {"segment_bytes": 65_535},
    {"segment_bytes": 65_536},
    {"heartbeat_ms": 0},
    {"heartbeat_ms": 251},
    {"heartbeat_ms": 250},
    {"election_min_ms": 1001},
    {"election_max_ms": 499},
    {"max_uncommitted_bytes": (1 << 20) - 1},
)


def test_settings_of_the_log() -> None:
    lines = []
    for settings in LOG_SETTINGS:
        config = NodeConfig("c", "g", "n0", Path("data"), b"s" * 32, **settings)
        lines.append(f"{settings} | {refusal_of(partial(getattr, config, 'replica')) or 'taken'}")
    compare("surfaces/config_log", lines)


def test_operator_warnings_equal_the_recording() -> None:
    lines = []
    cases: tuple[dict[str, Any], ...] = ({}, {"host": "0.0.0.0", "advertised_host": "h", "flush": "async"})
    for keys in cases:
        config = BrokerConfig(broker_group="g", node_id="n0", data_dir=Path("data"), **keys)
        lines += [f"{keys}:", *config.warnings()]
    compare("surfaces/config_warnings", lines)
