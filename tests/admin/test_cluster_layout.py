"""Names, ports and directories of a local cluster follow from four numbers."""

from pathlib import Path

import pytest

from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.errors import LayoutError

DIR = Path("/data")


def test_node_k_of_group_g_has_the_documented_names_and_ports_and_every_port_is_its_own():
    layout = ClusterLayout(DIR, groups=2, nodes=3, namesrv_port=9000, base_port=20000)
    place = layout.place("broker-b-n2")
    assert (place.group, place.number) == ("broker-b", 2)
    assert (place.client_port, place.peer_port, place.http_port) == (20120, 20121, 20122)
    assert place.follower_broker_id == 3
    assert place.directory == DIR / "broker-b-n2"
    assert layout.namesrv_address == "127.0.0.1:9000"
    ports = [port for port, _ in ClusterLayout(DIR, groups=5, nodes=9).ports()]
    assert len(ports) == len(set(ports)) == 1 + 5 * 9 * 4


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"nodes": 4}, ["--nodes 4", "odd", "give 3"]),
        ({"nodes": 0}, ["--nodes 0", "odd"]),
        ({"nodes": 11}, ["--nodes 11", "1 to 9"]),
        ({"groups": 0}, ["--groups 0", "1 to 26"]),
        ({"base_port": 65530}, ["--base-port 65530", "65535"]),
        ({"base_port": 0}, ["--base-port 0"]),
        ({"namesrv_port": 70000}, ["--namesrv-port 70000"]),
        ({"namesrv_port": 10922}, ["--namesrv-port 10922", "peer port of broker-a-n1", "--base-port 10911"]),
    ],
)
def test_numbers_that_make_no_cluster_are_refused_with_the_option_named(numbers, words):
    with pytest.raises(LayoutError) as refused:
        ClusterLayout(DIR, **numbers)
    assert all(word in refused.value.message for word in words), refused.value.message


def test_an_unknown_node_is_answered_with_the_nodes_there_are():
    with pytest.raises(LayoutError, match="no node broker-7-n0; it has broker-a-n0, broker-a-n1"):
        ClusterLayout(DIR).place("broker-7-n0")
