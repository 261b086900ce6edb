"""The cluster as a client reaches it: connections, name servers, routes, and the leader of each broker group.

Producers, consumers and administrators stand on this package, and it knows nothing of them. Start with `core`, which
each of them opens. Clock, random bits and threads come from `surroundings`.
"""
