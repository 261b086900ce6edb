"""Store: the durable half of the log, with segments, index units, hard state, durable mark, snapshots and identity.

It holds every byte that must survive a crash, and the recovery that reads them back. Consensus decisions are elsewhere
(`dledger.core`), and so are threads, clocks and randomness (`dledger.replica`). The store does not know what bodies
mean.

Every access goes through `disk.Disk`, so that the simulator runs this very code on `dledger.testing.disk.SimDisk`.
Start with `log.LogStore`. `recovery` says what a crash may leave behind and how it is handled.
"""
