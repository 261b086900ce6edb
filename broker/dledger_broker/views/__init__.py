"""Indexes that are derived from committed entries on every replica, and can be thrown away.

Consume queues (`consumequeue.py`) list a queue's records, the key index (`keyindex.py`) finds records by key; both use
RocketMQ's file formats.  They know a queue's view (`queueview.py`), and nothing of the state.  A checkpoint says up to
where the queues' files are durable; what of them cannot be trusted at a start is read from the log again.  Start at
`units.py`, the bytes of a queue.
"""
