"""Indexes that are derived from committed entries on every replica, and can be thrown away.

Consume queues (`consumequeue.py`) list a queue's records, the key index (`keyindex.py`) finds records by key; both use
RocketMQ's file formats.  A checkpoint says up to where the queues' files are durable, `recovery.py` decides what of
them can be trusted at a start; what cannot is read from the log again.  Start at `units.py`, the bytes of a queue.
"""
