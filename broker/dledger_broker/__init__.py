"""One broker node: RocketMQ's semantics on the replicated log of `dledger`.

Here live the replicated state (`state/`), the indexes derived from the log (`views/`), the state machine that keeps
both (`machine.py`), retention, the request processors and the server.  Wire formats live in `dledger_remoting`,
replication in `dledger`.  Start reading at `machine.py`: what it applies is all that a failover keeps.
"""
