"""A replica: it carries out what the consensus engine asks, on a disk, a transport and an environment it is given.

Nothing here touches asyncio, a socket or a clock; `dledger.node` joins a replica to the real ones and `dledger.sim` to
simulated ones, so what the simulator proves is what runs.  Start at `replica.Replica`; proposing stands in `proposer`,
applying in `applier`, syncing in `flusher`, snapshots and trims in `snapshotter` and `transfer`, who may be a member in
`joining`.
"""
