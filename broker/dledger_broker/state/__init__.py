"""State that a failover keeps: topics, groups, consumer offsets and every queue's next and first kept offset.

`commands.py` holds the decided facts that the log carries, `tables.py` what applying them and the records
(`applying_records.py`) makes, `snapshot.py` its encoding, `proposals.py` and `offset_buffer.py` what a leader has
proposed and not yet applied.  No I/O, no clocks, no requests.  Start at `tables.py`.
"""
