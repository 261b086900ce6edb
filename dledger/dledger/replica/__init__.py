"""Replica: carries out what the consensus engine asks, on the disk, transport and environment it is given.

Nothing here touches asyncio, a socket or a clock. `dledger.node` joins a replica to the real ones, `dledger_sim.log` to
simulated ones. So the simulator tests the code that runs in production.

Start at `replica.Replica`, which makes the parts. All parts use these modules:

- `driver`: the interface through which a part has the replica do something, and the queue of calls into the service.
- `standing`: facts about the replica, each written by one part.
- `feed`: the calls that notify the state machine.

The parts stand in rooms. A room imports only rooms that stand before it in this list:

1. `storing`: syncing and rewriting the log.
2. `snapshots`: marks, taking, keeping and sending.
3. `applying`: committed entries and reads.
4. `writing`: the leader's side.
5. `peers`: messages that come in and go out.
6. `start`: opening a directory.
7. `upkeep`: healing, scrubbing, members, warnings. A write never enters it.

`status`, `describe` and `clocks` tell others about a replica.
"""
