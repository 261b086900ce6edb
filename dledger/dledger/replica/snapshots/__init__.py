"""Snapshots of the state: when they are due (`marks`), and how they are taken, kept intact, and sent to other replicas.

The files themselves are those of `dledger.store.snapshots`.
"""
