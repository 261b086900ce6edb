"""Handlers of requests.

`frontend/dispatch.py` hands requests over by code: what needs the leader is passed on, what must not be stale waits for
a read index, errors become answers. The families: `pull.py` (with `longpoll.py`), `offsets.py`, `membership.py`
(heartbeats), `topics.py` (topics and groups), `queries.py`. `table.py` is the list of codes. Handlers never block; what
may touch the disk is a task. Start reading at `table.py`.
"""
