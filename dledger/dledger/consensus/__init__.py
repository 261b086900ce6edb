"""Boundary between a replica and its consensus engine, which decides the order of entries and when they are committed.

Everything here is a type or a small value. It contains no engine, and must not import one.  A replica knows an engine
by `engine.Engine`, and carries its `effects` out. It moves the engine's `messages` between nodes, and knows only their
lane and their part of the log.  `dledger_sim.engine_suite` has the promises of every engine, as tests.
`dledger.engines` has the engines themselves.  Start reading in `engine`.
"""
