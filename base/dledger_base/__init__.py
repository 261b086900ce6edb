"""Parts that brokers and name servers share as servers: the HTTP port, the request memory, keys of TLS, the audit log.

Servers build their ports from these parts. Each server decides itself how a connection handles its bytes. Nothing here
knows topics, routes or the log. Start reading at `admission`, which bounds the connections of a port.
"""
