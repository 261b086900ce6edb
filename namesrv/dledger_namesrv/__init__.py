"""The name server: registry of broker groups, their leaders, and the topics that they serve.

`table` is the registry, pure and without a clock; `server` puts it on a port. `kv` keeps configuration values and
`known` the broker groups over a restart. Name servers do not know of each other: every broker registers with all of
them. Start reading at `table`.
"""
