"""State that a failover keeps, and that is not the kernel's: consumer offsets.

A table's module has its commands, the decided facts that the log carries, its frames in a snapshot, and the key by
which a state has the table (`kernel.state`).  `offset_buffer.py` holds what a leader has proposed and not yet applied.
No I/O, no clocks, no requests.  Start at `offsets.py`.
"""
