"""The wire format of RocketMQ's remoting protocol: bytes in, objects out.

Contains frames, headers, codes, the message record with its properties and ids, the JSON bodies, subscription filters
and the error tree. Nothing here reads a socket, a file or a clock, and nothing here knows of Raft. Start with `frame`,
which cuts a byte stream into frames, then `command` (one request or response), then `headers` and `record`.
"""
