"""What administrators ask of a cluster: calls to leaders and name servers, and what they tell of topics and groups.

`admin` and `accounts` above have the calls of the application; nothing here keeps state. Start with `cluster_calls`.
"""
