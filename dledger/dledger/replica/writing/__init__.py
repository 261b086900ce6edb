"""The leader's side of a write: units become entries, and entries are proposed. Start at `leading`.

A write meets `leading`, `proposer` and `space` here, and no other part of a replica before the engine.
"""
