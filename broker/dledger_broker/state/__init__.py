"""State that a failover keeps: topics, groups, consumer offsets and every queue's next and first kept offset.

`tables.py` puts it together, from the kernel's tables and those of groups, offsets, pins and remembered sends here; a
table's module has its commands, the decided facts that the log carries.  `applying.py` says what they do,
`snapshot.py` holds the state's encoding, `proposals.py` and `offset_buffer.py` what a leader has proposed and not yet
applied.  No I/O, no clocks, no requests.  Start at `tables.py`.
"""
