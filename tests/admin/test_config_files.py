"""`up` writes a configuration file for each process, and refuses some contents."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_admin.cluster.bootstrap import founding_manifest
from dledger_admin.cluster.config_files import (
    Overrides,
    broker_table,
    read_overrides,
    stored_overrides,
    write_config_files,
)
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.lifecycle import ClusterSetup, UpOptions
from dledger_admin.cluster.set_keys import set_keys
from dledger_admin.cluster.toml_text import dump, merge
from dledger_admin.errors import AdminError

keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
scalars = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
tables = st.recursive(
    st.dictionaries(keys, st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=4),
    lambda inner: st.dictionaries(keys, st.one_of(scalars, inner, st.lists(inner, max_size=2)), max_size=4),
    max_leaves=8,
)


@given(tables)
def test_tables_written_as_toml_read_back_equal(table):
    assert tomllib.loads(dump(table)) == table


def test_tables_merge_key_by_key_and_values_replace():
    base = {"peers": {"a": {"address": "1"}, "b": {"address": "2"}}, "namesrv": ["x"]}
    over = {"peers": {"a": {"address": "9"}}, "namesrv": ["y", "z"]}
    assert merge(base, over) == {"peers": {"a": {"address": "9"}, "b": {"address": "2"}}, "namesrv": ["y", "z"]}


def layout_in(tmp_path):
    return ClusterLayout(tmp_path, groups=1, nodes=3, namesrv_port=9000, base_port=20000)


def overrides_of(tmp_path, text):
    file = tmp_path / "given.toml"
    file.write_text(text)
    return read_overrides(file, layout_in(tmp_path))


def founded(tmp_path, cluster=None):
    layout = layout_in(tmp_path)
    return layout, founding_manifest(layout, cluster, 1 << 20)


def test_a_node_configuration_lists_peers_broker_id_and_name_servers_or_what_overrides_say(tmp_path):
    layout, manifest = founded(tmp_path, "shop")
    overrides = overrides_of(tmp_path, '[nodes.broker-a-n1.peers.broker-a-n2]\naddress = "127.0.0.1:7777"\n')
    table = broker_table(layout, manifest, layout.place("broker-a-n1"), Overrides())
    first, third = {"address": "127.0.0.1:20001"}, {"address": "127.0.0.1:20021"}
    assert table["peers"] == {"broker-a-n0": first, "broker-a-n2": third}
    assert (table["broker_id_when_follower"], table["namesrv"]) == (2, ["127.0.0.1:9000"])
    proxied = broker_table(layout, manifest, layout.place("broker-a-n1"), overrides)["peers"]
    direct = broker_table(layout, manifest, layout.place("broker-a-n0"), overrides)["peers"]
    assert (proxied["broker-a-n2"], direct["broker-a-n2"]) == ({"address": "127.0.0.1:7777"}, third)


def test_overrides_are_kept_for_nodes_started_later(tmp_path):
    overrides = overrides_of(
        tmp_path, 'flush = "async"\n[nodes.broker-a-n1]\nadvertised_port = 7\n[namesrv]\nidle_timeout_ms = 5000\n'
    )
    layout, manifest = founded(tmp_path)
    for place in layout.places():
        place.directory.mkdir()
    write_config_files(layout, manifest, overrides)
    assert stored_overrides(layout) == overrides
    written = tomllib.loads((tmp_path / "broker-a-n1" / "broker.toml").read_text())
    assert (written["flush"], written["advertised_port"]) == ("async", 7)
    assert tomllib.loads((tmp_path / "namesrv" / "namesrv.toml").read_text())["idle_timeout_ms"] == 5000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('node_id = "x"', ["node_id = 'x'", "layout"]),
        ('host = "::1"', ["host = '::1'", "[nodes.<node id>]"]),
        ("port = 1", ["port = 1", "--base-port"]),
        ("[nodes.broker-a-n0]\nhttp_port = 1", ["http_port = 1", "--base-port"]),
        ("[namesrv]\nport = 1", ["port = 1", "--namesrv-port"]),
        ('[namesrv]\ndata = "x"', ["data = 'x'", "layout"]),
        ("[nodes.broker-9-n0]\nflush = 1", ["[nodes.broker-9-n0]", "names no node", "broker-a-n0"]),
        ("[nodes.broker-a-n0]\nsegment_bytes = 1", ["segment_bytes = 1", "identity"]),
        ("nodes = 3", ["nodes = 3", "table [nodes]"]),
        ("flush = ", ["is not TOML", "Invalid value"]),
    ],
)
def test_an_invalid_override_key_is_named_with_its_file(tmp_path, text, words):
    with pytest.raises(AdminError) as refused:
        overrides_of(tmp_path, text)
    assert all(word in refused.value.message for word in ["given.toml", *words]), refused.value.message


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("retention_hours", ["expected KEY=VALUE"]),
        ("=4", ["expected KEY=VALUE"]),
        ("node_id=x", ["node_id = 'x'", "layout"]),
        ("port=1", ["port = 1", "--base-port"]),
        ("nodes.broker-a-n9.flush=sync", ["names no node", "Did you mean 'broker-a-n"]),
    ],
)
def test_a_key_that_cannot_be_set_is_refused_as_in_a_file(tmp_path, setting, words):
    with pytest.raises(AdminError) as refused:
        set_keys(Overrides(), [setting], layout_in(tmp_path))
    assert all(word in refused.value.message for word in ["--set", *words]), refused.value.message


def test_set_keys_lie_over_those_of_the_file_and_an_empty_value_takes_one_away(tmp_path):
    given = overrides_of(tmp_path, 'flush = "async"\nretention_hours = 5')
    settings = ["flush=sync", "retention_hours=", "namesrv.idle_timeout_ms=5", "nodes.broker-a-n0.log_level=INFO"]
    assert set_keys(given, settings, layout_in(tmp_path)) == Overrides(
        {"flush": "sync"}, {"broker-a-n0": {"log_level": "INFO"}}, {"idle_timeout_ms": 5}
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("4", 4), ("0.5", 0.5), ('"4"', "4"), ("a b", "a b"), ("2026-01-01", "2026-01-01")],
)
def test_a_value_is_read_as_toml_or_is_a_text(tmp_path, text, value):
    assert set_keys(Overrides(), [f"key={text}"], layout_in(tmp_path)).brokers == {"key": value}


def test_up_refuses_an_unknown_key_before_it_writes_anything(tmp_path, ports):
    base_port, namesrv_port = ports
    options = UpOptions(tmp_path / "data", 1, 3, namesrv_port, base_port, settings=["retention_hour=4"])
    with pytest.raises(AdminError, match=r"retention_hour.*did you mean 'retention_hours'"):
        ClusterSetup.prepare(options)
    assert not (tmp_path / "data").exists()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(AdminError, match=r"--config .*absent.toml cannot be read: No such file"):
        read_overrides(tmp_path / "absent.toml", layout_in(tmp_path))


def test_up_explains_a_key_whose_meaning_has_changed(tmp_path, ports):
    base_port, namesrv_port = ports
    laid_over = tmp_path / "laid-over.toml"
    laid_over.write_text("disk_max_used_ratio = 0.8\n")
    setup = ClusterSetup.prepare(UpOptions(tmp_path / "data", 1, 3, namesrv_port, base_port, laid_over))
    (meaning,) = setup.meanings
    assert meaning.startswith("disk_max_used_ratio is set: disk_max_used_ratio = 0.8 no longer deletes unexpired")
    assert ClusterSetup.prepare(UpOptions(tmp_path / "other", 1, 3, namesrv_port, base_port)).meanings == []
