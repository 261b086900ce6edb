"""What happens to the log on this replica's disk: its syncs, how far acknowledgements may run ahead, and its rewriting.

The newest entries are kept in memory as well. Start at `flusher`.
"""
