"""The wire of RocketMQ's remoting protocol: bytes in, objects out.

Here live frames, headers, codes, the message record, its properties and ids, the JSON bodies, tag filters and the error
tree. Nothing here reads a socket, a file or a clock, and nothing here knows of Raft. Start with `frame` (cutting a byte
stream), then `command` (one request or response), then `headers` and `record`.
"""
