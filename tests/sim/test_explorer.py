"""The explorer searches small worlds completely, and shows a known bug by a shortest history."""

from dataclasses import replace
from itertools import permutations

import pytest

from dledger.core.raft import Raft
from dledger_base.invariants import InvariantError
from dledger_sim.log.explore import state as explored_state
from dledger_sim.log.explore.bounds import Bounds
from dledger_sim.log.explore.prefixes import PREFIXES
from dledger_sim.log.explore.search import Found, search
from dledger_sim.log.explore.state import put_together, take_apart
from dledger_sim.log.explore.story import tell
from dledger_sim.log.explore.tables import rename_envelope, rename_history, rename_node
from dledger_sim.log.explore.world import World, Worlds
from dledger_sim.log.mutants import MUTANTS

PROMPT = Bounds(prompt_saves=True, prompt_syncs=True)
ONE_TERM = replace(PROMPT, terms=1)


def explored(bounds: Bounds, prefix: str = "", jobs: int = 1) -> Found:
    found = search(bounds, prefix=prefix, jobs=jobs)
    assert found.trail is None, "\n".join(tell(bounds, prefix, found.trail))
    assert found.complete
    return found


def story_of(mutant: str, bounds: Bounds, prefix: str = "") -> list[str]:
    with MUTANTS[mutant].applied():
        found = search(bounds, prefix=prefix)
        assert found.trail is not None, f"{mutant} got away with {found}"
        story = list(tell(bounds, prefix, found.trail))
    print("\n".join(story))
    return story


@pytest.mark.parametrize(
    ("bounds", "states", "depth"),
    [
        (Bounds(terms=1), 21_417, 29),
        (Bounds(nodes=1, crashes=2), 139, 12),
        (Bounds(nodes=2, crashes=1), 23_897, 34),
        (PROMPT, 31_498, 45),
        (replace(ONE_TERM, crashes=1), 7_518, 31),
        (replace(ONE_TERM, duplicates=1), 4_902, 29),
        (replace(ONE_TERM, drops=1), 4_567, 30),
        (replace(ONE_TERM, heartbeats=1), 12_509, 34),
        (replace(PROMPT, entries=0, transfers=1), 23_609, 43),
        (replace(ONE_TERM, entries=0, membership=1), 1_134, 29),
        (replace(ONE_TERM, entries=0, pre_votes=True), 919, 27),
    ],
    ids=str,
)
def test_a_small_world_ends_with_every_promise_kept(bounds: Bounds, states: int, depth: int) -> None:
    """The numbers change only if the core takes other steps than before."""
    found = explored(bounds)
    assert (found.progress.states, found.progress.depth) == (states, depth)


def test_a_parallel_search_finds_the_same_states() -> None:
    bounds = replace(ONE_TERM, crashes=1)
    alone, together = explored(bounds), explored(bounds, jobs=3)
    assert alone.progress._replace(seconds=0.0) == together.progress._replace(seconds=0.0)


@pytest.mark.parametrize(
    ("mutant", "bounds", "steps"),
    [
        ("ack-before-sync", Bounds(terms=1, prompt_saves=True), 12),
        ("commit-without-quorum", ONE_TERM, 7),
        ("follower-commits-last-index", replace(PROMPT, heartbeats=1), 24),
        ("leader-counts-unsynced", Bounds(terms=1, prompt_saves=True), 11),
        ("message-before-save", Bounds(terms=1), 1),
        ("sync-generation-ignored", Bounds(prompt_saves=True), 20),
        ("truncate-matching", replace(ONE_TERM, duplicates=1), 19),
        ("vote-for-short-log", PROMPT, 19),
        ("vote-twice", ONE_TERM, 6),
    ],
)
def test_a_known_bug_ends_in_a_shortest_story(mutant: str, bounds: Bounds, steps: int) -> None:
    story = story_of(mutant, bounds)
    assert story[-2].startswith(f"{steps:3}. ")
    assert "breaks a promise" in story[-1]


@pytest.mark.parametrize(
    ("mutant", "prefix", "promise"),
    [
        ("commit-older-term", "figure8", "a leader holds all entries that were committed in earlier terms"),
        ("stale-acknowledgement", "stale-ack", "an acknowledged entry equals the leader's"),
    ],
)
def test_the_explorer_finds_deep_violations_behind_a_script(mutant: str, prefix: str, promise: str) -> None:
    story = story_of(mutant, PREFIXES[prefix].bounds, prefix)
    assert f"     -- so far the script {prefix}" in story
    assert promise in story[-1]


@pytest.mark.parametrize("prefix", sorted(PREFIXES))
def test_a_script_itself_breaks_nothing(prefix: str) -> None:
    explored(replace(PREFIXES[prefix].bounds, in_flight=1), prefix)


def some_worlds(worlds: Worlds, count: int) -> list[World]:
    """Return the first worlds of a search, in which nodes remember much."""
    found, seen = [worlds.first()], set()
    for world in found:
        for _, after in worlds.successors(world):
            known = worlds.canonical_hash(after)
            if known not in seen and len(found) < count:
                seen.add(known)
                found.append(after)
    return found


def test_a_core_is_rebuilt_equal_from_its_state() -> None:
    worlds = Worlds(Bounds(crashes=1, transfers=1, heartbeats=1, in_flight=4))
    some_worlds(worlds, 3_000)
    states = worlds.tables.nodes.values
    assert len({state.role for state in states}) == 3
    for state in states:
        raft = put_together(state, worlds.tables.settings)
        assert take_apart(raft, state, state.log) == state


def called_otherwise(worlds: Worlds, world: World, renaming: tuple[int, ...]) -> World:
    """Return the world with node n renamed to `renaming[n]`."""
    tables = worlds.tables
    nodes = [0] * len(renaming)
    for place, node in enumerate(world.nodes):
        nodes[renaming[place]] = tables.nodes.of(rename_node(tables.nodes.values[node], renaming))
    envelopes = (
        tables.envelopes.of(rename_envelope(tables.envelopes.values[envelope], renaming))
        for envelope in world.envelopes
    )
    history = tables.histories.of(rename_history(tables.histories.values[world.history], renaming))
    return World(tuple(nodes), tuple(sorted(envelopes)), history, world.budgets)


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(crashes=1),
        replace(ONE_TERM, crashes=1, prompt_syncs=False, prompt_syncs_at_last=True),
        replace(ONE_TERM, transfers=1, membership=1, spare=1),
        replace(PROMPT, entries=0, crashes=1, membership=2, spare=1),
    ],
    ids=str,
)
def test_worlds_that_differ_only_in_names_share_hash_and_successors(bounds: Bounds) -> None:
    worlds = Worlds(bounds)

    def future(world: World) -> set[int]:
        return {worlds.canonical_hash(after) for _, after in worlds.successors(world)}

    for world in some_worlds(worlds, 3_000)[::40]:
        for renaming in permutations(range(bounds.nodes)):
            other = called_otherwise(worlds, world, renaming)
            assert worlds.canonical_hash(other) == worlds.canonical_hash(world)
            assert future(other) == future(world)


def test_a_step_that_raises_before_any_change_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(raft: Raft, now: float) -> None:
        raise InvariantError(f"{raft.me} cannot tell the time at {now}")

    monkeypatch.setattr(Raft, "tick", fail)
    found = search(ONE_TERM)
    assert found.trail is not None
    assert any("cannot tell the time" in line for line in tell(ONE_TERM, "", found.trail))


def test_a_core_with_a_memory_unknown_to_the_explorer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explored_state, "KNOWN", explored_state.KNOWN - {"vote"})
    with pytest.raises(InvariantError, match="vote"):
        search(ONE_TERM)


def test_a_search_stops_at_its_state_limit() -> None:
    found = search(Bounds(), most_states=500)
    assert not found.complete
    assert found.trail is None
    assert 500 <= found.progress.states < 5_000
