"""Applying of committed entries to the state machine, and the reads that wait for it. Start at `applier`."""
