"""A replica: it carries out what the consensus engine asks, on a disk, a transport and an environment it is given.

Nothing here touches asyncio, a socket or a clock; `dledger.node` joins a replica to the real ones and `dledger_sim.log`
to simulated ones, so what the simulator proves is what runs.  Start at `replica.Replica`, which makes the parts, and
`driver`, which is what a part may ask of it.  The leader's side stands in `leading` and `proposer`; what comes in and
goes out in `inbox` and `outbox`; syncing in `flusher` and `saver`; applying in `applier` and `feed`; snapshots, digests
and trims in `snapshotting`, `snapshotter` and `transfer`; healing of bit rot in `repair`; who may be a member in
`joining`; warnings for operators in `warnings`.
"""
