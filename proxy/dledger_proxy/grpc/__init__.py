"""The gRPC service of RocketMQ 5 (`apache.rocketmq.v2`), by groups of requests.

Here is what turns these requests into calls of our client, and the answers back. Nothing here knows a broker's files or
features. Start with `service`: it lists the requests, and the module of each. `port` is the listening port, `transport`
HTTP/2 with limits, and `definition` the interface as `.proto` with its generated modules.
"""
