"""Small worlds, exhaustively: every interleaving of what can happen to a few real cores, within bounds.

No model stands between the explorer and the code: a state of the world holds what is needed to put each
`dledger.core.raft.Raft` back together, the real core takes the step, and what it becomes is taken apart again.
`docs/explorer.md` says what is explored and why what is left out may be; start reading at `world.World`.
"""
