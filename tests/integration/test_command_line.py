"""The `dledger` command against a cluster of real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from commands import run

from dledger_client.testing import LocalCluster, local_cluster_fixture

pytestmark = pytest.mark.long

cluster = local_cluster_fixture(scope="module")


def dledger(cluster: LocalCluster, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run(*words, stdin=stdin, DLEDGER_NAMESRV=cluster.namesrv)


def test_produce_beside_a_cluster_that_is_starting_waits_for_its_first_leader(cluster):
    for name in ("namesrv", *cluster.node_ids):
        cluster.kill(name)
    cluster.restart("namesrv")
    words = [sys.executable, "-m", "dledger_admin", "produce", "--topic", "first", "--timeout", "60"]
    environment = {**os.environ, "DLEDGER_NAMESRV": cluster.namesrv}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as produce:
        said = produce.stderr.readline()
        # A name server killed right after the first registration may not have recorded it yet.
        assert said in {
            f"waiting until {missing} registers with name server {cluster.namesrv}\n"
            for missing in ("a leader of broker-a", "a broker")
        }
        for node_id in cluster.node_ids:
            cluster.restart(node_id)
        output, _ = produce.communicate("1\n2\n", timeout=60)
    assert (produce.returncode, output) == (0, "2 messages, 2 bytes to first\n")


async def test_consume_shows_exactly_the_requested_range(cluster, topic):
    def shown(*words):
        told = dledger(cluster, "consume", "--topic", topic, "--to", "end", "--queue", "2", *words)
        assert told.returncode == 0, told.stderr
        return told.stdout

    lines = "".join(f"k{number}\t{number}\n" for number in range(10))
    assert dledger(cluster, "produce", "--topic", topic, "-k", "--queue", "broker-a/2", stdin=lines).returncode == 0
    assert shown("-k") == lines
    assert shown("--from", "-3", "-f", "%p@%o ") == "2@7 2@8 2@9 "
    assert shown("--from", "8").split() == ["8", "9"]
    assert shown("--from", "100") == ""
    assert dledger(cluster, "consume", "--topic", topic, "--queue", "2", "--to", "-8").stdout.split() == ["0", "1"]
    stored = int(shown("-n", "1", "-f", "%T"))
    assert len(shown("--from", str(stored)).split()) == 10
    assert len(shown("--from", "-10m").split()) == 10
    assert dledger(cluster, "consume", "--topic", topic, "--to", str(stored)).stdout == ""
    again = dledger(
        cluster, "produce", "--topic", topic, "-f", "%k:%s", "-n", "1", "--queue", "3", stdin="a:b:c\nd:e\n"
    )
    assert again.stdout == f"1 messages, 3 bytes to {topic}\n"
    assert dledger(cluster, "consume", "--topic", topic, "--queue", "3", "--to", "end", "-k").stdout == "a\tb:c\n"
    group = ("consume", "--topic", topic, "--group", "bounded")
    assert dledger(cluster, *group, "--to", "4", "--queue", "2").stdout.split() == ["0", "1", "2", "3"]
    assert dledger(cluster, *group, "--to", "6", "--queue", "2", "--from", "end").stdout.split() == ["4", "5"]
    assert dledger(cluster, *group, "--to", "end", "--queue", "2").stdout.split() == ["6", "7", "8", "9"]
