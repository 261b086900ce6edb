"""`dledger node recover` lets one stopped node vote although it may lack acknowledged messages."""

import os

import pytest
from click.testing import CliRunner

from dledger.replica.start.boot import ACCEPT_LOSS_PATH, BootRecord, note_boot
from dledger.store.disk import OsDisk
from dledger.store.identity import DirectoryLock
from dledger_admin.cli import main
from dledger_admin.cluster.bootstrap import complete_bootstrap, founding_manifest
from dledger_admin.cluster.layout import ClusterLayout

NODE = "broker-a-n0"


@pytest.fixture
def cluster(tmp_path, ports):
    """Return a stopped cluster. One node ran with flush = async before its host went down."""
    base_port, namesrv_port = ports
    layout = ClusterLayout(tmp_path / "cluster", 1, 3, namesrv_port, base_port)
    complete_bootstrap(layout, founding_manifest(layout, None, 1 << 20))
    disk = OsDisk(str(layout.data_dir / NODE))
    disk.mkdir("raft")
    note_boot(disk, BootRecord("monday", "async"), clean=False)
    return layout.data_dir


def recover(data, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["node", "recover", "--data", str(data), *arguments])
    return result.exit_code, result.output


def votes(data, boot_id: str) -> bool:
    return note_boot(OsDisk(str(data / NODE)), BootRecord(boot_id, "async"), clean=False).may_vote


def test_a_recovered_node_votes_in_its_next_run_only(cluster):
    assert not votes(cluster, "tuesday")
    code, output = recover(cluster, NODE, "--accept-loss")
    assert code == 0, output
    assert f"{NODE} will vote from its next start on" in output
    assert votes(cluster, "tuesday")
    assert not votes(cluster, "wednesday")


def test_a_start_that_lost_nothing_uses_the_acceptance_up(cluster):
    recover(cluster, NODE, "--accept-loss")
    assert votes(cluster, "monday")
    assert not votes(cluster, "tuesday")


def test_a_loss_of_a_running_node_or_without_the_option_is_not_accepted(cluster):
    code, output = recover(cluster, NODE)
    assert (code, "give --accept-loss" in output) == (2, True)
    lock = DirectoryLock.acquire(str(cluster / NODE), os.getpid())
    code, output = recover(cluster, NODE, "--accept-loss")
    lock.release()
    assert (code, f"in use by the live process {os.getpid()}" in output) == (1, True)
    assert not (cluster / NODE / ACCEPT_LOSS_PATH).exists()


@pytest.mark.parametrize(
    ("node", "words"), [("broker-a-n1", "no log that a node has written"), ("broker-z-n0", "no node")]
)
def test_recovering_a_missing_or_unstarted_node_is_refused_with_the_reason(cluster, node, words):
    code, output = recover(cluster, node, "--accept-loss")
    assert code == 1
    assert words in output
