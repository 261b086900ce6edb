"""Driver of a node's step: the real core takes it, and the driver carries out the core's effects.

The driver does exactly what `dledger.replica` does. It writes, and begins a sync if none runs. It saves term and vote
in order, and holds back the messages that must wait for them. It reads from the log when an append leaves. It proposes
a no-op as soon as the core leads.

Time is not kept. Every decision of a core that depends on a clock is a separate step. Before it the core's timers are
set so that the decision is due, or so that it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dledger.consensus.effects import (
    AppendEntries,
    Commit,
    Effect,
    ResetLog,
    RoleChanged,
    SaveHardState,
    SendCatchUp,
    SendEntries,
    SendMessage,
    SendSnapshot,
    Truncate,
)
from dledger.consensus.engine import RaftSettings
from dledger.consensus.peers import Mode
from dledger.core.messages import Append, VoteReply
from dledger.core.raft import Raft
from dledger.errors import ContradictionError
from dledger.types import EntryMeta, HardState, Role
from dledger_base.invariants import InvariantError
from dledger_sim.log.explore.bounds import (
    CRASHES,
    FREE,
    HEARTBEATS,
    MEMBERSHIP,
    NAMES,
    RESIGNATIONS,
    TRANSFERS,
    Bounds,
)
from dledger_sim.log.explore.state import (
    APPEND,
    APPEND_REPLY,
    ENTRY_BYTES,
    HEARTBEAT,
    HEARTBEAT_REPLY,
    NOBODY,
    NUMBERS,
    REPLICAS,
    VOTE_REPLY,
    VOTE_REQUEST,
    Entry,
    Envelope,
    NodeState,
    first_state,
    mask_of,
    meta,
    pack,
    put_together,
    start,
    take_apart,
    unpack,
)

DUE = -1.0
NEVER = float("inf")
LONG_AGO = float("-inf")

CATCH_UP = 2


class BrokenPromise(Exception):  # noqa: N818 - an outcome of a step, not an error of the program
    """A step does something that must never happen."""


class Move(NamedTuple):
    """Step that a node may take without a message: its name, its arguments, and the budget to charge."""

    name: str
    argument: int = 0
    more: int = 0
    budget: int = FREE


class Seen(NamedTuple):
    """Event of a step that the witness of the world must judge."""

    what: str
    first: int = 0
    last: int = 0
    entries: tuple[Entry, ...] = ()


class Outcome(NamedTuple):
    """Outcome of a step. `broken` is a promise that the step broke by itself."""

    state: NodeState
    sent: tuple[Envelope, ...]
    seen: tuple[Seen, ...]
    broken: str = ""


class Driver:
    """Driver that takes steps. It keeps no state between them except its bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.settings = RaftSettings(max_run_bytes=ENTRY_BYTES) if bounds.one_entry_messages else RaftSettings()

    def moves(self, state: NodeState) -> tuple[Move, ...]:
        """Return everything that a node may do by itself, regardless of budgets."""
        found = [Move("save")] if state.saves else []
        if state.sync >= 0:
            found.append(Move("sync"))
        if state.role == Role.LEADER:
            found += self._list_leader_moves(state)
        elif state.voters >> state.me & 1 and state.may_vote and state.term < self._bounds.terms:
            found.append(Move("time out"))
        return (*found, *_iter_crashes(state))

    def is_urgent(self, state: NodeState, *, crashes_left: bool = False) -> bool:
        """Return whether all other steps must wait until this node has saved, synced or crashed."""
        bounds = self._bounds
        prompt_syncs = bounds.prompt_syncs or (bounds.prompt_syncs_at_last and not crashes_left)
        return (bounds.prompt_saves and bool(state.saves)) or (prompt_syncs and state.sync >= 0)

    def _list_leader_moves(self, state: NodeState) -> list[Move]:
        voters = state.voters
        found = [Move("heartbeat", budget=HEARTBEATS)]
        if any(peer[4] == Mode.STREAM and peer[5] for peer in state.progress):
            found.append(Move("heartbeat and resend", budget=HEARTBEATS))
        if voters.bit_count() > 1:
            found.append(Move("resign", budget=RESIGNATIONS))
        if state.transfer_to != NOBODY:
            found.append(Move("give up the transfer"))
            return found
        if len(state.log) < self._bounds.entries:
            found.append(Move("append"))
        found += [Move("transfer", peer[0], budget=TRANSFERS) for peer in state.progress if voters >> peer[0] & 1]
        if self._bounds.membership and put_together(state, self.settings).can_change_membership:
            masks = (voters ^ 1 << node for node in range(self._bounds.nodes))
            found += [Move("membership", mask, budget=MEMBERSHIP) for mask in masks if mask]
        return found

    def move(self, state: NodeState, move: Move) -> Outcome:
        """Let a node take a step by itself."""
        if move.name == "crash":
            state = _after_crash(state, move.argument, move.more)
            run = _Run(state, start(state, self.settings), self._bounds)
            return run.take(lambda: None)
        run = _Run(state, put_together(state, self.settings), self._bounds)
        return run.take(lambda: run.move(move))

    def deliver(self, state: NodeState, envelope: Envelope) -> Outcome:
        """Deliver a message to a node."""
        run = _Run(state, put_together(state, self.settings), self._bounds)
        return run.take(lambda: run.receive(envelope))


def _iter_crashes(state: NodeState) -> Iterator[Move]:
    for kept in range(len(state.log) - state.platter + 1):
        for saves in range(len(state.saves) + 1):
            yield Move("crash", kept, saves, CRASHES)


def _after_crash(state: NodeState, kept: int, saves: int) -> NodeState:
    """Return the state after a crash: the platter, plus `kept` entries and `saves` saves.

    A recovery makes all of it durable.
    """
    log = state.log[: state.platter + kept]
    saved = state.saves[saves - 1] if saves else state.saved
    first = first_state(state.me, state.members)
    return first._replace(log=log, commit=-1, platter=len(log), saved=saved)


class _Run:
    """Core in the middle of a step."""

    def __init__(self, state: NodeState, raft: Raft, bounds: Bounds) -> None:
        self._before = state
        self._raft = raft
        self._bounds = bounds
        self._log = list(state.log)
        self._platter = state.platter
        self._saved = state.saved
        self._saves = list(state.saves)
        self._held = list(state.held)
        self._sync = state.sync
        self._sync_stale = state.sync_stale
        self._sent: dict[Envelope, None] = {}
        self._seen: list[Seen] = []
        self._elected = False

    def take(self, step: Callable[[], None]) -> Outcome:
        """Take the step, carry out its effects, and take the core apart."""
        broken = ""
        try:
            step()
            self._carry_out()
        except (InvariantError, ContradictionError, BrokenPromise) as error:
            broken = str(error)
        before, log = self._before, tuple(self._log)
        if self._raft.commit_index < before.commit:
            broken = broken or f"a commit index never goes back: {self._raft.commit_index} after {before.commit}"
        if log != before.log:
            self._seen.append(Seen("log"))
        state = take_apart(self._raft, before, log)._replace(
            platter=self._platter,
            saved=self._saved,
            saves=tuple(self._saves),
            held=tuple(sorted(self._held)),
            sync=self._sync,
            sync_stale=self._sync_stale,
        )
        return Outcome(state, tuple(self._sent), tuple(self._seen), broken)

    # ---------------------------------------------------------------- steps

    def receive(self, envelope: Envelope) -> None:
        """Let the core handle a message.

        Time decides whether a voter still hears its leader. A request that such a voter ignores is the same as a lost
        request.
        """
        message, entries = unpack(envelope), envelope[4]
        metas: tuple[EntryMeta, ...] = ()
        if isinstance(message, Append):
            metas = tuple(meta(index, entry) for index, entry in enumerate(entries, message.prev_index + 1))
        self._raft.step(REPLICAS[envelope[0]], message, 0.0, metas, bytes(ENTRY_BYTES * len(metas)))

    def move(self, move: Move) -> None:
        raft = self._raft
        match move.name:
            case "save":
                self._complete_save()
            case "sync":
                self._complete_sync()
            case "time out":
                self._time_out()
            case "heartbeat" | "heartbeat and resend":
                self._set_clocks(contact=0.0, probe=LONG_AGO if move.name != "heartbeat" else 0.0, heartbeat=DUE)
                raft.tick(0.0)
            case "resign":
                raft.tick(0.0)
            case "give up the transfer":
                self._set_clocks(contact=0.0, probe=0.0, transfer=DUE)
                raft.tick(0.0)
            case "append":
                self._propose((raft.term, 0))
            case "membership":
                self._propose((raft.term, move.argument))
            case "transfer":
                raft.transfer(REPLICAS[move.argument], 0.0)

    def _set_clocks(self, *, contact: float, probe: float, heartbeat: float = NEVER, transfer: float = NEVER) -> None:
        vars(self._raft).update(_heartbeat_at=heartbeat, _nudge_at=heartbeat, _transfer_deadline=transfer)
        for progress in self._raft.progress.values():
            progress.contact_at, progress.probe_at = contact, probe

    def _time_out(self) -> None:
        raft = self._raft
        vars(raft).update(_election_deadline=DUE)
        raft.tick(0.0)
        if self._bounds.pre_votes or not _asks_first(raft):
            return
        raft.take()  # A granted pre-vote changes nothing at the voter, so it is taken as granted without asking.
        for voter in raft.table.membership.voters:
            if voter != raft.me and _asks_first(raft):
                raft.step(voter, VoteReply(raft.term + 1, granted=True, pre=True), 0.0)

    def _complete_save(self) -> None:
        saved = self._saves.pop(0)
        (term, vote), (term_before, vote_before) = saved, self._saved
        if term < term_before or (term == term_before and vote_before not in (NOBODY, vote)):
            raise BrokenPromise(f"one vote a term, and no way back: {saved} is saved after {self._saved}")
        self._saved = saved
        self._raft.hard_state_saved(HardState(term, None if vote == NOBODY else REPLICAS[vote]), 0.0)
        self._carry_out()
        self._held = [(saves - 1, late, envelope) for saves, late, envelope in self._held]
        self._release()

    def _complete_sync(self) -> None:
        last, stale = self._sync, self._sync_stale
        self._sync, self._sync_stale = -1, False
        if not stale:
            self._platter = max(self._platter, last + 1)
        generation = self._raft.generation - 1 if stale else self._raft.generation
        self._begin_sync()
        self._raft.synced(generation, last, 0.0)

    def _begin_sync(self) -> None:
        if self._sync < 0 and self._platter < len(self._log):
            self._sync = len(self._log) - 1

    def _propose(self, entry: Entry) -> None:
        self._raft.propose((meta(len(self._log), entry),), bytes(ENTRY_BYTES), 0.0)

    # ---------------------------------------------------------------- effects

    def _carry_out(self) -> None:
        while True:
            output = self._raft.take()
            if not output.effects and not output.after_sync:
                return
            for effect in output.effects:
                self._execute(effect)
            waiting = [(len(self._saves), *self._address(effect)) for effect in output.after_sync]
            self._held += [held for held in waiting if held not in self._held]
            self._release()

    def _release(self) -> None:
        while self._held and self._held[0][0] <= 0:
            _, late, envelope = self._held.pop(0)
            self._send(late, envelope)

    def _execute(self, effect: Effect) -> None:
        match effect:
            case AppendEntries(metas, _):
                self._log += [(each.term, mask_of(each.membership) if each.membership else 0) for each in metas]
                self._begin_sync()
            case Truncate(first_index):
                self._truncate(first_index)
            case SaveHardState(state):
                self._saves.append((state.term, NOBODY if state.vote is None else NUMBERS[state.vote]))
            case SendMessage() | SendEntries() | SendCatchUp():
                self._send(*self._address(effect))
            case Commit(index):
                first = max(self._before.commit, -1) + 1
                self._seen.append(Seen("commit", first, index, tuple(self._log[first : index + 1])))
            case RoleChanged(Role.LEADER, term, _):
                self._seen.append(Seen("leader", term))
                self._elected = True
                self._propose((term, 0))
            case SendSnapshot() | ResetLog():
                raise BrokenPromise(f"logs are kept whole here, and nobody needs a snapshot: {effect}")

    def _truncate(self, first: int) -> None:
        self._seen.append(Seen("truncate", first, entries=tuple(self._log[first:])))
        del self._log[first:]
        self._platter = min(self._platter, first)
        if self._sync >= 0:
            self._sync_stale = True

    def _address(self, effect: SendMessage | SendEntries | SendCatchUp) -> tuple[int, Envelope]:
        """Return an envelope with a code for its entries.

        The code is 1 if they are read from the log when the envelope leaves, 2 for catch-up, and 0 otherwise.
        """
        me, to = self._before.me, NUMBERS[effect.to]
        match effect:
            case SendMessage(_, message):
                return int(isinstance(message, Append)), pack(me, to, message)
            case SendEntries(_, message):
                return 1, pack(me, to, message)
            case SendCatchUp(_, term, first_index, max_bytes):
                # The end of the catch-up is decided when the log is read.
                return 2, (me, to, APPEND, (term, first_index - 1, max_bytes // ENTRY_BYTES), ())

    def _send(self, late: int, envelope: Envelope) -> None:
        me, to, kind, fields, _ = envelope
        raft = self._raft
        if kind == HEARTBEAT and self._elected:
            return  # the heartbeat of a new leader may be lost as well; separate steps send others
        if late and not (raft.is_leader and raft.term == fields[0]):
            return
        if late == CATCH_UP:
            envelope = self._catch_up(to, *fields)
        elif late:
            first = fields[1] + 1
            envelope = (me, to, kind, fields, tuple(self._log[first : first + fields[4]]))
        self._check_promises(envelope)
        self._sent[envelope] = None

    def _catch_up(self, to: int, term: int, prev: int, most: int) -> Envelope:
        raft = self._raft
        entries = tuple(self._log[prev + 1 : prev + 1 + max(1, most)])
        prev_term = self._log[prev][0] if prev >= 0 else 0
        message = Append(term, prev, prev_term, raft.commit_index, len(entries))
        raft.catch_up_sent(REPLICAS[to], term, prev + len(entries), ENTRY_BYTES * len(entries), 0.0)
        return pack(self._before.me, to, message, entries)

    def _check_promises(self, envelope: Envelope) -> None:
        """Check that everything a message says about its sender's disk is on the sender's platter."""
        me, to, kind, fields, _ = envelope
        term, promised = self._saved, fields[0]
        if kind == VOTE_REQUEST and fields[3]:
            promised -= 1
        elif kind == VOTE_REQUEST:
            _require_vote(me, term, (fields[0], me))
        elif kind == VOTE_REPLY and fields[2]:
            promised = 0
        elif kind == VOTE_REPLY and fields[1]:
            _require_vote(me, term, (fields[0], to))
        elif kind in (APPEND_REPLY, HEARTBEAT_REPLY):
            match = fields[1] if kind == APPEND_REPLY else fields[2]
            if match >= self._platter:
                raise BrokenPromise(
                    f"an acknowledged entry is on the sender's platter: {NAMES[me]} acknowledges up to {match},"
                    f" its platter holds {self._platter} entries"
                )
            if match >= 0:
                self._seen.append(Seen("acknowledge", fields[0], match))
        if promised > self._saved[0]:
            raise BrokenPromise(
                f"no message carries a term that is not durable: {NAMES[me]} sends term {promised}, has saved {term}"
            )


def _asks_first(raft: Raft) -> bool:
    return raft.role is Role.PRE_CANDIDATE


def _require_vote(me: int, saved: tuple[int, int], vote: tuple[int, int]) -> None:
    if saved[0] <= vote[0] and saved != vote:
        raise BrokenPromise(f"a vote is durable before it leaves: {NAMES[me]} votes {vote}, has saved {saved}")
