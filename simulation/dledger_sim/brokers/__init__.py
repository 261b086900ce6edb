"""Brokers in the simulator of `dledger_sim.log`: three nodes with state, views, features and forwarding.

- `service` is the broker that a simulated node runs.
- `connection` is the clients' side of a socket.
- `truth` has the contents of the log, with which every replica must agree.
- `workload` has the actions of a seed's clients and the answers to them.
- `clients` has the producers, consumers, administrators and readers.
- `trial` is one seed of all that.
- `judgement` checks what must be there at the end.
- `mutants` has the broker's known bugs.
- `lab` lists what `python -m dledger_sim.brokers` can run.

Nothing here opens a socket or reads a real clock.
"""
