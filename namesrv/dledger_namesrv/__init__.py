"""The name server: which broker groups exist, who leads them, and which topics they serve.

`table` is the registry, pure and without a clock; `server` puts it on a port; `kv` keeps the only thing that survives a
restart. Name servers do not know of each other: every broker registers with all of them. Start reading at `table`.
"""
