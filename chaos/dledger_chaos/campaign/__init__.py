"""Many runs, each with a mixture of its own, and what they have come to together.

`swarm` draws a mixture from a seed, `driver` runs one seed after the other, `totals` keeps their figures in a file,
`figures` makes a table of them.  What a single run does is not decided here: see `dledger_chaos.run`.
"""
