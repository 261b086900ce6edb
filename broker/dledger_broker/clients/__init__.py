"""Clients of a group: the tables of connected clients, their exchange between nodes, and requests from the broker to
clients.

`tables.py` holds each node's own clients and the leader's merged view of all. `gossip.py` is the exchange that merges
them. `relay.py` asks a client through the node that the client is connected to. Nothing here is replicated or survives
a restart, and nothing here knows what a client's requests mean. Start with `tables.py`.
"""
