"""Kernel of the broker: the modules that every feature builds on. It imports the views, and nothing else of the broker.

- `machine.py`: the state machine that the log drives.
- `requests.py`, `routes.py`: requests, and the nodes that may handle them.
- `commands.py`: the registry of commands.
- `queues.py`, `topics.py`, `members.py`, `trims.py`: the tables that every feature needs.
- `applying_records.py`, `view_recovery.py`: the effect of committed records on tables and views.
- `lookup.py`: reads single messages.
- `records.py`, `writer.py`: the writes of a leader.
- `overlay.py`, `trims_under_way.py`: changes that a leader has in flight.
- `jobs.py`: the work that a leader does by itself.
- `leadership.py`, `roles.py`: the leader, and this node's role.

Code that only one feature needs lies with that feature. Start with `machine.py`, then `topics.py`.
"""
