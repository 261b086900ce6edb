"""Clients of a group: who is connected where, how the nodes tell each other, and what the broker asks of clients.

`tables.py` holds each node's own clients and the leader's merged view of all, `gossip.py` is the exchange that merges
them, `relay.py` asks a client through the node that has it. Nothing here is replicated or survives a restart, and
nothing here knows what a client's requests mean. Start with `tables.py`.
"""
