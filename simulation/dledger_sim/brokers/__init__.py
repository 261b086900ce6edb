"""Brokers in the simulator of `dledger_sim.log`: three nodes with state, views, features and forwarding.

`service` is what a simulated node runs, `connection` the clients' side of a socket, `truth` what the log says and
every replica must agree with, `workload` what a seed's clients do and were told, `clients` who sends, consumes,
administers and asks, `trial` one seed of all that, `judgement` what must be there in the end, `mutants` the broker's
known bugs, `lab` what `python -m dledger_sim.brokers` can run.  Nothing here opens a socket or reads a clock.
"""
