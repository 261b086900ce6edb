"""Links between the replicas of a group.

For each ordered pair, A dials B twice (control and bulk) and sends only on what it dialled, so that one direction can
be lost alone.  `transport` is the boundary the rest of the package sees; `links` is its TCP implementation, built from
`frames` and `handshake` (pure: bytes in, objects out) and `connection` (one socket); `requests` adds questions and
answers over a data channel.  Nothing here knows what a message means.  Start reading in `transport`.

`tls` makes the contexts of all connections, those of clients too; `proof` shows on an HTTP port who knows the group's
secret.
"""
