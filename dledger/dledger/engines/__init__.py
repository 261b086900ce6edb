"""Consensus engines that a replica can have, each an `EngineKind` of `dledger.consensus.engine`.

`native` is the default one, `pysyncobj` has PySyncObj decide; `named` finds them by these names.  Nothing but an
engine's own module imports what it is made of.  What both share (the table of the log, what a leader knows of a member,
messages) stands in `dledger.core`.
"""
