"""An orderly stop that is cut short at any step has written nothing wrong."""

from random import Random

import pytest
from node_group import JournalService
from sim_groups import run, started

from dledger.errors import StorageError
from dledger.store.commit import PATH as COMMIT_PATH
from dledger.store.verify import verify


def test_a_power_loss_before_the_log_is_synced_is_no_damage_below_the_commit_index() -> None:
    """A follower with a slow disk learns a commit index above its own durable entries."""
    group = started(service=JournalService)
    leader = group.leader
    slow = next(node for node in group.nodes.values() if node is not leader)
    slow.sync_delay_s = 10.0
    replica = slow.life.replica
    for _ in range(5):
        leader.life.replica.stage(200, lambda _: (bytes(200),))
        run(group, 0.2)
    assert replica.engine.commit_index > replica.store.durable
    replica.stop()
    slow.disk.fail(lambda call, path: call == "datasync" and path.startswith("commitlog"), once=False)
    with pytest.raises(StorageError):
        replica.close(clean=True)
    slow.disk.faults.clear()
    slow.disk.open(COMMIT_PATH).datasync()  # the operating system may write this file first, without a sync
    slow.disk.crash(Random(1), "none")
    assert verify(slow.name, disk=slow.disk).problems == []
