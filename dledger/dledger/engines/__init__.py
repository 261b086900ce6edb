"""Consensus engines that a replica can have, each an `EngineKind` of `dledger.consensus.engine`.

`native` is the default. In `pysyncobj` the library PySyncObj decides. `named` finds them by these names. Only an
engine's own module imports its parts. Both use three parts of `dledger.core`: the table of the log, the progress of a
member as its leader knows it, and the messages.
"""
