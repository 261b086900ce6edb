"""Clients of a group: who is connected where, and how the nodes tell each other.

`tables.py` holds each node's own clients and the leader's merged view of all, `gossip.py` is the exchange that merges
them. Nothing here is replicated or survives a restart, and nothing here knows what a client's requests mean. Start with
`tables.py`.
"""
