"""Narrator of a counter-example, step by step."""

from __future__ import annotations

from collections.abc import Iterator

from dledger.types import Role
from dledger_base.invariants import invariant
from dledger_sim.log.explore.bounds import NAMES, Bounds
from dledger_sim.log.explore.prefixes import Script
from dledger_sim.log.explore.state import MESSAGE_TYPES, NOBODY, Envelope, NodeState, unpack
from dledger_sim.log.explore.tables import Tables
from dledger_sim.log.explore.witness import show
from dledger_sim.log.explore.world import BrokenWorld, Step, World, Worlds

_MOVES = {
    "save": "has its term and vote on disk",
    "sync": "has synced its log",
    "time out": "hears no leader, and campaigns",
    "heartbeat": "sends a heartbeat",
    "heartbeat and resend": "has had no answer, and sends again",
    "resign": "hears no majority, and steps down",
    "give up the transfer": "gives up handing over",
    "append": "takes an entry from a client",
}


def tell(bounds: Bounds, prefix: str, trail: list[int]) -> Iterator[str]:
    """Yield the numbered lines of a trail, and of the step after it that breaks a promise."""
    worlds = Worlds(bounds)
    script = Script.played(worlds, prefix)
    number = 0
    before = worlds.first()
    for step, world in script.steps:
        number += 1
        yield f"{number:3}. {_line(worlds.tables, step, before, world)}"
        before = world
    if prefix:
        yield f"     -- so far the script {prefix}"
    world = script.world
    for found in trail:
        number += 1
        step, after = _follow(worlds, world, found)
        yield f"{number:3}. {_line(worlds.tables, step, world, after)}"
        world = after
    try:
        for _ in worlds.successors(world):
            pass
    except BrokenWorld as broken:
        node = worlds.tables.nodes.values[broken.result.node]
        yield f"{number + 1:3}. {describe_step(worlds.tables, broken.step)}: {describe_node(node)}"
        yield f"     and that breaks a promise: {broken.promise}"


def _follow(worlds: Worlds, world: World, found: int) -> tuple[Step, World]:
    for step, after in worlds.successors(world):
        if worlds.canonical_hash(after) == found:
            return step, after
    invariant(condition=False, what="a trail can be followed", hash=found)
    raise AssertionError


def _line(tables: Tables, step: Step, before: World, after: World) -> str:
    line = f"{describe_step(tables, step)}: {describe_node(tables.nodes.values[after.nodes[step.node]])}"
    sent = [
        describe_envelope(tables.envelopes.values[envelope])
        for envelope in after.envelopes
        if envelope not in before.envelopes
    ]
    return f"{line}; sent: {', '.join(sent)}" if sent else line


def describe_step(tables: Tables, step: Step) -> str:
    """Describe a step."""
    name = NAMES[step.node]
    if step.move is None:
        return f"{step.how} {describe_envelope(tables.envelopes.values[step.envelope])}"
    move = step.move
    if move.name == "crash":
        return f"{name} crashes with {move.argument} unsynced entries and {move.more} saves kept, and starts again"
    if move.name == "transfer":
        return f"{name} hands over to {NAMES[move.argument]}"
    if move.name == "membership":
        members = "".join(name for number, name in enumerate(NAMES) if move.argument >> number & 1)
        return f"{name} makes the voters {members}"
    return f"{name} {_MOVES[move.name]}"


def describe_envelope(envelope: Envelope) -> str:
    """Describe a message with its fields."""
    sender, to, kind, _, entries = envelope
    message = unpack(envelope)
    shown = {
        name: value
        for name in MESSAGE_TYPES[kind].__struct_fields__
        if (value := getattr(message, name)) is not False
        and name not in ("disk_used", "wall_ms", "healthy", "first_position", "round")
    }
    if shown.get("rejected_index") == -2:  # the default: nothing is rejected
        shown = {name: value for name, value in shown.items() if not name.startswith(("rejected", "hint"))}
    text = " ".join(name if value is True else f"{name}={value}" for name, value in shown.items())
    what = MESSAGE_TYPES[kind].__name__
    return f"{NAMES[sender]}→{NAMES[to]} {what}({text}{' ' + show(entries) if entries else ''})"


def describe_node(state: NodeState) -> str:
    """Describe a node's present state."""
    vote = "" if state.vote == NOBODY else f", voted {NAMES[state.vote]}"
    role = Role(state.role).name.lower()
    return (
        f"{NAMES[state.me]} is {role} in term {state.term}{vote}, log {show(state.log)}"
        f" ({state.platter} on the platter), commit {state.commit}"
    )
