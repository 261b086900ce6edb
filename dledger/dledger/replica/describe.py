"""Status of a replica."""

from __future__ import annotations

from dledger.consensus.peers import DISK_FULL
from dledger.replica.clocks import clock_ahead_ms
from dledger.replica.replica import Replica
from dledger.replica.status import NodeStatus, PeerStatus


def describe(replica: Replica) -> NodeStatus:
    """Return the status of a replica for `/status`. Only a leader's status lists peers."""
    engine, store = replica.engine, replica.store
    membership = engine.membership
    now, wall_ms = replica.environment.now(), replica.environment.wall_ms()
    peers = [
        PeerStatus(
            peer.node_id,
            peer in membership.voters,
            progress.match_index,
            store.last_index - progress.match_index,
            int((now - progress.contact_at) * 1000),
            progress.mode.name.lower(),
            min(progress.disk_used, DISK_FULL),
            clock_ahead_ms(progress, now, wall_ms),
            progress.first_position,
        )
        for peer, progress in engine.progress.items()
    ]
    return NodeStatus(
        node_id=replica.me.node_id,
        incarnation=replica.me.incarnation,
        cluster=replica.config.cluster,
        group=replica.config.group,
        group_identity=replica.own_group.directory.group_id or None,
        role=engine.role.name.lower(),
        term=engine.term,
        leader_id=None if engine.leader is None else engine.leader.node_id,
        ready=replica.is_ready,
        voter=engine.is_voter,
        first_index=store.first_index,
        last_index=store.last_index,
        commit_index=engine.commit_index,
        applied_index=replica.applied_index,
        first_position=store.first_position,
        last_position=store.end_position,
        durable_position=replica.durable_position,
        applied_position=replica.applied_position,
        disk_used=min(engine.disk_used, DISK_FULL),
        syncs=replica.flusher.syncs,
        sync_seconds=replica.flusher.seconds,
        elections=replica.elections,
        voters=[str(member.node_id) for member in membership.voters],
        learners=[str(member.node_id) for member in membership.learners],
        peers=peers,
        corrupt_bytes=replica.repairer.corrupt_bytes,
        repairs=replica.repairer.repairs,
        rotten_snapshots=len(replica.snapshots.rotten),
        snapshots=len(replica.snapshots.positions()),
        snapshot_position=max(replica.snapshots.positions(), default=-1),
        verified_position=store.verified_position,
        scrub_rounds=store.scrub_rounds,
        loop_late=replica.timed_loop.lateness(),
        loop_held=replica.environment.holds.held(),
        disk_warning=replica.housekeeper.disk.warning,
        refusal=replica.leading.admission.refusal,
        failure=None if replica.failure is None else str(replica.failure),
    )
