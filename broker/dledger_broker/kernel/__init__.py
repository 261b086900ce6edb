"""Kernel of the broker: what every feature stands on. It imports the views, and nothing else of the broker.

The state machine that the log drives (`machine.py`); requests and who may handle them (`requests.py`, `routes.py`); the
registry of commands (`commands.py`) and the tables that every feature needs (`queues.py`, `topics.py`, `members.py`,
`trims.py`); what committed records do to them and to the views (`applying_records.py`, `view_recovery.py`), and single
messages (`lookup.py`); what a leader writes (`records.py`, `writer.py`), has in flight (`overlay.py`,
`trims_under_way.py`) and does by itself (`jobs.py`); who leads (`leadership.py`, `roles.py`). What only one feature
needs lies with that feature. Start with `machine.py`, then `topics.py`.
"""
