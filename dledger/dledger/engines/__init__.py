"""Consensus engines that a replica can have, each an `EngineKind` of `dledger.consensus.engine`.

`native` is the default one.  Nothing but an engine's own module imports what it is made of.
"""
