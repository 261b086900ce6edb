"""One broker node: RocketMQ's semantics on the replicated log of `dledger`.

- `kernel/`: the state machine, and everything that all features build on.
- `features/`: the features, each with its replicated table and its request codes.
- `views/`: the indexes derived from the log.
- `clients/`: the tables of connected clients.
- `frontend/`: the server.

Wire formats live in `dledger_remoting`, replication in `dledger`. Start reading at `kernel/machine.py`: a failover
keeps exactly the state that this module applies.
"""
