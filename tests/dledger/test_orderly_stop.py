"""An orderly stop: whatever it writes is right, wherever it is cut short."""

from random import Random

import pytest
from node_group import JournalService

from dledger.errors import StorageError
from dledger.store.commit import PATH as COMMIT_PATH
from dledger.store.verify import verify
from dledger_sim.log.group import GroupSettings, SimGroup
from dledger_sim.log.scheduler import Scheduler


def test_a_power_loss_before_the_log_is_synced_is_no_damage_below_the_commit_index() -> None:
    """A follower with a slow disk knows what the others have committed before it has it itself."""
    scheduler = Scheduler()
    group = SimGroup(scheduler, Random(1), GroupSettings(), JournalService)
    for name in group.nodes:
        group.start(name)
    scheduler.run_until(3.0)
    leader = group.leader
    assert leader is not None
    slow = next(node for node in group.nodes.values() if node is not leader)
    slow.sync_delay_s = 10.0
    replica = slow.life.replica
    for _ in range(5):
        leader.life.replica.stage(200, lambda _: (bytes(200),))
        scheduler.run_until(scheduler.now + 0.2)
    assert replica.engine.commit_index > replica.store.durable
    replica.stop()
    slow.disk.fail(lambda call, path: call == "datasync" and path.startswith("commitlog"), once=False)
    with pytest.raises(StorageError):
        replica.close(clean=True)
    slow.disk.faults.clear()
    slow.disk.open(COMMIT_PATH).datasync()  # of its own accord the operating system may write out one file first
    slow.disk.crash(Random(1), "none")
    assert verify(slow.name, disk=slow.disk).problems == []
