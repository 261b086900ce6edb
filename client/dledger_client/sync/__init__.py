"""The client for programs without an event loop: the same calls, blocking.

Each object runs its own event loop in a thread of its own, so that heartbeats and long polls continue while the program
is busy. Methods may be called from any thread, `close` also from a signal handler. A forked process has no such
threads: create an object in each process. Arguments, results and errors are those of the asynchronous classes.
"""

from __future__ import annotations

from .admin import SyncAdmin
from .consumer import SyncConsumer
from .producer import SyncProducer
from .pull import SyncPullConsumer
from .simple import SyncSimpleConsumer
from .transactions import SyncTransactionProducer

__all__ = [
    "SyncAdmin",
    "SyncConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncSimpleConsumer",
    "SyncTransactionProducer",
]
