"""Explorer of small worlds: it tries every interleaving of the steps of a few real cores, within bounds.

No model stands between the explorer and the code. A state of the world holds enough to rebuild each
`dledger.core.raft.Raft`. The real core takes the step, and its new state is taken apart again.
`docs/proof/explorer.md` says what is explored and why the rest may be left out. Start reading at `world.World`.
"""
