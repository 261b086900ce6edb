"""Links between the replicas of a group.

For each ordered pair of nodes, A dials B twice (control and bulk) and sends only on the connections that it dialled. So
one direction can be lost alone. `transport` is the interface for the rest of the package, and the place to start
reading. `links` is its TCP implementation, built from `frames` and `handshake` (pure: bytes in, objects out) and
`connection` (one socket). `requests` adds questions and answers over a data channel. Nothing here knows what a message
means.

`tls` makes the contexts of all connections, including those of clients. `proof` authenticates callers of an HTTP port
that know the group's secret.
"""
