"""The durable half of the log: segments, index units, hard state, durable mark, snapshots, identity.

Here lives every byte that must survive a crash, and the recovery that reads it back.  Not here: consensus decisions
(`dledger.core`), threads, clocks and randomness (`dledger.replica` brings them), and any knowledge of what bodies mean.
Every access goes through `disk.Disk`, so that the simulator runs this very code on `dledger.testing.disk.SimDisk`.
Start with `log.LogStore`; `recovery` says what a crash may leave behind and what becomes of it.
"""
