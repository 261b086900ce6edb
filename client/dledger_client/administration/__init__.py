"""Parts of the administrator: calls to leaders and name servers, lookups of messages, and figures of topics and groups.

`admin` and `accounts` above have the calls of the application; nothing here keeps state. Start with `cluster_calls`.
"""
