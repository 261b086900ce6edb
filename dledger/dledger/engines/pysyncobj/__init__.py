"""PySyncObj as an engine: its `SyncObj` holds elections, accepts entries, counts who has them and commits.

What it loses data by in its stock form stands in `library`, with what replaces each.  In short: the log is the store's
(`journal`), term and vote are durable before a message tells of them (`outbox`), messages are `dledger.core.messages`
on the project's own links, the clock is the one that calls bring, and snapshots are the replica's.  Pre-vote, reads,
durable acknowledgements and the window of what is under way are added around it: `engine` for every replica, `leading`
for the one that leads.

Start reading in `engine`.
"""
