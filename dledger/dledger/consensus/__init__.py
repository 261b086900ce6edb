"""Boundary between a replica and its consensus engine, which decides the order of entries and when they are committed.

Everything here is a type or a small value; no engine stands here, and none may be imported.  A replica knows an engine
by `engine.Engine`, carries its `effects` out, and moves its `messages` between nodes without knowing what they say but
for their lane and which part of the log they speak of.  `dledger.testing.engine_suite` has what every engine promises,
as tests; the engines themselves are told in `dledger.engines`.  Start reading in `engine`.
"""
