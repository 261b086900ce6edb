"""Replica: carries out what the consensus engine asks, on the disk, transport and environment it is given.

Nothing here touches asyncio, a socket or a clock. `dledger.node` joins a replica to the real ones, `dledger_sim.log` to
simulated ones. So the simulator tests the code that runs in production.

Start at `replica.Replica`, which makes the parts, and at `driver`, the interface through which a part asks something of
the replica. The other modules:

- `leading` and `proposer`: the leader's side.
- `inbox` and `outbox`: messages that come in and go out.
- `flusher` and `saver`: syncing.
- `applier` and `feed`: applying entries.
- `snapshotting`, `snapshotter` and `transfer`: snapshots, digests and trims.
- `repair`: healing of bit rot.
- `joining`: the policy that decides on members.
- `warnings`: warnings for operators.
"""
