"""Configuration files that `up` writes for each process, and those that it refuses to write."""

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
def test_what_is_written_as_toml_reads_back_as_it_was(table):
    assert tomllib.loads(dump(table)) == table


def test_tables_merge_key_by_key_and_values_replace():
    base = {"peers": {"a": {"address": "1"}, "b": {"address": "2"}}, "namesrv": ["x"]}
    over = {"peers": {"a": {"address": "9"}}, "namesrv": ["y", "z"]}
    assert merge(base, over) == {
        "peers": {"a": {"address": "9"}, "b": {"address": "2"}},
        "namesrv": ["y", "z"],
    }


def layout_in(tmp_path):
    return ClusterLayout(tmp_path, groups=1, nodes=3, namesrv_port=9000, base_port=20000)


def overrides_of(tmp_path, text):
    file = tmp_path / "given.toml"
    file.write_text(text)
    return read_overrides(file, layout_in(tmp_path))


def test_a_node_is_told_its_peers_and_its_place(tmp_path):
    layout = layout_in(tmp_path)
    manifest = founding_manifest(layout, "shop", 1 << 20)
    table = broker_table(layout, manifest, layout.place("broker-a-n1"), Overrides())
    assert table["peers"] == {
        "broker-a-n0": {"address": "127.0.0.1:20001"},
        "broker-a-n2": {"address": "127.0.0.1:20021"},
    }
    assert table["broker_id_when_follower"] == 2
    assert table["namesrv"] == ["127.0.0.1:9000"]


def test_one_link_of_one_node_can_be_sent_through_a_proxy(tmp_path):
    overrides = overrides_of(tmp_path, '[nodes.broker-a-n1.peers.broker-a-n2]\naddress = "127.0.0.1:7777"\n')
    layout = layout_in(tmp_path)
    manifest = founding_manifest(layout, None, 1 << 20)
    proxied = broker_table(layout, manifest, layout.place("broker-a-n1"), overrides)["peers"]
    direct = broker_table(layout, manifest, layout.place("broker-a-n0"), overrides)["peers"]
    assert proxied["broker-a-n2"] == {"address": "127.0.0.1:7777"}
    assert direct["broker-a-n2"] == {"address": "127.0.0.1:20021"}


def test_overrides_are_kept_for_nodes_started_later(tmp_path):
    overrides = overrides_of(
        tmp_path, 'flush = "async"\n[nodes.broker-a-n1]\nadvertised_port = 7\n[namesrv]\nidle_timeout_ms = 5000\n'
    )
    layout = layout_in(tmp_path)
    manifest = founding_manifest(layout, None, 1 << 20)
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
def test_a_key_that_cannot_stand_is_named_with_the_file(tmp_path, text, words):
    with pytest.raises(AdminError) as refused:
        overrides_of(tmp_path, text)
    assert all(word in refused.value.message for word in ["given.toml", *words]), refused.value.message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(AdminError, match=r"--config .*absent.toml cannot be read: No such file"):
        read_overrides(tmp_path / "absent.toml", layout_in(tmp_path))
