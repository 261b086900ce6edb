"""Views: indexes that every replica derives from committed entries, and that can be thrown away.

Consume queues (`consumequeue.py`) list a queue's records. The key index (`keyindex.py`) finds records by key. Both use
RocketMQ's file formats. They know a queue's view (`queueview.py`), and nothing of the state. A checkpoint says up to
which log position the queues' files are durable. At a start, the parts that cannot be trusted are read from the log
again. Start at `units.py`, the bytes of a queue.
"""
