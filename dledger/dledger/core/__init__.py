"""The consensus core: Raft as a function of messages, ticks and completed syncs.

Nothing here knows a clock, a socket, a file or a task.  `raft.Raft` takes time as an argument and randomness from an
injected generator, and answers every call with effects (`effects`) that a driver carries out in order.  What must not
happen before the hard state is on disk stands in a list of its own.  Start reading at `raft.Raft.step`.
"""
