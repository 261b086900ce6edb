"""Simulation of our client library on a simulated group: the real client code, on simulated sockets and clock.

Start reading at `trial` (one seed), then `process` (one client process), `loop` and `wires` (asyncio and the network),
`judge` (the promises). Nothing here knows the client's private parts. It gives the client another event loop, and other
`dledger_client.cluster.surroundings`.
"""
