"""Storing of the log on this replica's disk: syncs, the bound on acknowledgements ahead of them, and rewriting.

The newest entries are kept in memory as well. Start at `flusher`.
"""
