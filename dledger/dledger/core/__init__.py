"""The consensus core: Raft as a function of messages, ticks and completed syncs.

The core uses no clock, no socket, no file and no task.  `raft.Raft` takes time as an argument and randomness from an
injected generator.  It answers every call with effects (`effects`), which a driver carries out in order.  Effects that
must wait until the hard state is on disk have a list of their own.  Start reading at `raft.Raft.step`.
"""
