"""One broker node: RocketMQ's semantics on the replicated log of `dledger`.

Here live the state machine and what all features stand on (`kernel/`), the features, each with its replicated table and
its request codes (`features/`), the indexes derived from the log (`views/`), the tables of clients (`clients/`) and the
server (`frontend/`).  Wire formats live in `dledger_remoting`, replication in `dledger`.  Start reading at
`kernel/machine.py`: what it applies is all that a failover keeps.
"""
