"""Workers, nodes and operators of one run, whose sessions stay open, roll back and are killed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

import psycopg

from hwqueue.testing import Clock
from tests.calls import Calls, Row
from tests.flows import Flow, fail, finish
from tests.nests import define
from tests.oracle.workflows import ENDED, End, Step, Told, Workflow, ends, run_state, runs_again
from tests.patience import looks
from tests.properties.workflow_graphs import steps_of

Key = tuple[UUID, str, int | None]
"""A lease: run, step, item."""
Effect = Callable[[], None]

LOCK_TIMEOUT = "50ms"
_LIVES = "select from pg_stat_activity where pid = %s"
SWEEPS = 10
LONGEST = 400  # rounds in which a run must end
MODES = ("failed", "failed", "all", "steps", "failed_and_downstream")
ADDED = Workflow([Step("s0"), Step("s1", after={"s0": "completed"})])  # what handlers add


class Session:
    """A connection; what its open transaction is to change, once it is committed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connect()

    def _connect(self) -> None:
        self.conn = psycopg.connect(self._dsn, autocommit=True)
        self.conn.execute("select set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT])
        self.calls = Calls(self.conn)
        self.is_open = False
        self.commits: list[Effect] = []
        self.rolls_back: list[Effect] = []

    def begin(self) -> None:
        """Open a transaction."""
        self.conn.execute("begin")
        self.is_open = True

    def did(self, commits: Effect, rolls_back: Effect = lambda: None) -> None:
        """Note what a call changes: at once, or when the transaction ends."""
        if not self.is_open:
            commits()
            return
        self.commits.append(commits)
        self.rolls_back.append(rolls_back)

    def end(self, how: str, others: Calls) -> None:
        """Commit, roll back, or kill the connection."""
        effects = self.commits if how == "commit" else self.rolls_back
        if how == "kill":
            pid = self.conn.info.backend_pid
            others.conn.execute("select pg_terminate_backend(%s)", [pid])
            for _ in looks():  # the function itself looks ten times a second
                if others.conn.execute(_LIVES, [pid]).fetchone() is None:
                    break
            self.conn.close()
            self._connect()
        elif self.is_open:
            self.conn.execute(how.encode())
        self.is_open, self.commits, self.rolls_back = False, [], []
        for effect in effects:
            effect()

    def close(self) -> None:
        """Close the connection."""
        self.conn.close()


@dataclass
class Node:
    """A node that claims; a later instance of its worker has another epoch."""

    node_id: UUID
    epoch: int = 0
    instances: int = 0


@dataclass
class History:
    """What has happened, in all runs."""

    leases: dict[Key, str] = field(default_factory=dict)
    added: dict[tuple[UUID, str], int] = field(default_factory=dict)
    added_runs: dict[tuple[UUID, str], list[UUID]] = field(default_factory=dict)
    declared: set[tuple[UUID, str]] = field(default_factory=set)
    sent: set[tuple[UUID, str]] = field(default_factory=set)
    cancelled: bool = False
    failing: bool = False


class Driver:
    """Runs one workflow to its end, as chance has it."""

    def __init__(
        self, sessions: list[Session], workflow: Workflow, chance: Random, *, cancels: bool = False
    ) -> None:
        self.desk, *self.sessions = sessions
        self.looks = self.desk.calls
        self.chance = chance
        self.cancels = cancels
        self.clock = Clock(self.looks.conn)
        for session in sessions:  # what a failed example left open
            session.end("rollback", self.looks)
        self.flow = Flow(self.looks, [{"name": "x", "task": "x"}])  # its queue
        self.workflows = {self.flow.queue: workflow, "added": ADDED}
        for step in workflow:
            if step.runs is not None:
                self._define(f"{self.flow.queue}-{step.name}", step.runs)
        spec = {"steps": steps_of(workflow, self.flow.queue), "on_failure": workflow.on_failure}
        self.flow.complete("x")
        self.nodes = [Node(uuid4()), Node(uuid4())]
        for node in self.nodes:
            self._register(node)
        self.has_gangs = any(step.kind == "gang" for step in workflow)
        own = {"require": [{"node": [str(node.node_id) for node in self.nodes]}]}
        self.flow.run = self.looks.row("submit_spec", spec=self.flow.spec | spec,
                                       input={"ok": True},  # no node of another run for its gang
                                       options={"placement": own} if self.has_gangs else {},
                                       )["run_id"]  # fmt: skip
        self.history = History()
        self.claims: dict[Key, Row] = {}
        self.settling: dict[Key, Row] = {}
        self.unsent: set[str] = set()
        self.is_shaken = False  # whether claims may be taken away: from then on others expire, too
        self.names: dict[UUID, str] = {}
        self.forgotten: dict[UUID, tuple[int, dict[Key, str]]] = {}

    def _define(self, name: str, workflow: Workflow) -> None:
        self.workflows[name] = workflow
        define(self.flow, name, *steps_of(workflow, name), on_failure=workflow.on_failure)

    def _register(self, node: Node) -> None:
        """Register a node, or the next instance of its worker."""
        node.instances += 1
        spec = {"name": f"node-{node.node_id}", "instance_id": f"n{node.instances}"}
        node.epoch = int(self.looks.value("register_node", node=node.node_id, spec=spec))

    # What is there to do.

    def workflow(self, run: UUID) -> Workflow:
        """What the run consists of."""
        if run not in self.names:
            name = self.looks.row("get_workflow_run", run=run)["workflow"]
            self.names[run] = "added" if name.startswith("added") else name
        return self.workflows[self.names[run]]

    def step(self, key: Key) -> Step:
        """The step of a lease."""
        return next(step for step in self.workflow(key[0]) if step.name == key[1])

    def claim(self) -> None:
        """Claim on either node some of what is released. Nothing runs twice."""
        node = self.chance.choice(self.nodes)
        if self.has_gangs and self.chance.random() < 0.5:
            for live in self.nodes:  # time may have passed
                self.looks.rows("heartbeat_node", node=live.node_id, epoch=live.epoch, claims=[])
            self.looks.conn.execute(  # not those that an open cancellation holds
                "update hwqueue.gang set next_try_at = hwqueue.clock() where gang_id in"
                " (select gang_id from hwqueue.gang for update skip locked)"
            )
            self.looks.rows("reap")
        rows = self.looks.rows(
            "claim_task", queues=[self.flow.queue], node=node.node_id, epoch=node.epoch,
            qty=self.chance.choice([1, 3, 100]),
        )  # fmt: skip
        for row in rows:
            said = row["headers"]
            key = (UUID(said["workflow_run_id"]), said["step"], said.get("item"))
            assert key not in self.history.leases, f"{key} has ended, and runs again"
            lost = self.claims.get(key, row)  # expired since, at the latest in this call
            assert lost["lease_id"] == row["lease_id"], f"{key} runs twice"
            self.claims[key] = row | {"node": node}

    def _check_windows(self) -> None:
        """No map has more items open than it may."""
        for run, name, item in self.claims:
            step = self.step((run, name, item))
            if step.kind == "map":
                open_now = {k for k in {*self.claims, *self.settling} if k[:2] == (run, name)}
                assert len(open_now) <= step.at_once

    def _look_for_deaths(self) -> None:
        """Drop claims that were taken away; what had no attempt left has ended with them."""
        if not self.is_shaken or not self.claims:
            return
        held = {
            (row["lease_id"], row["claim_token"])
            for node in self.nodes
            for row in self.looks.rows("node_claims", node=node.node_id)
        }
        for key, claim in list(self.claims.items()):
            if (claim["lease_id"], claim["claim_token"]) not in held:
                del self.claims[key]
                state = self.looks.row("get_lease", lease=claim["lease_id"])["state"]
                if state in ENDED:
                    self.history.leases[key] = state

    def run(self, calls: int) -> None:
        """Make so many calls as chance has it, then go on until the run has ended."""
        self.unsent = {s.name for s in self.workflow(self.flow.run) if s.kind == "wait"}
        if not self.history.sent:
            self.unsent -= {s.name for s in self.workflow(self.flow.run) if s.times_out}
        for turn in range(calls + LONGEST):
            self.claim()
            self._look_for_deaths()
            self._check_windows()
            if turn < calls:
                self._act(operates=True)
            elif self.claims or any(session.is_open for session in self.sessions):
                self._act(operates=False)
            elif self._is_over():
                return
            else:
                self._pass_time()
        raise AssertionError("the run does not end")

    def _is_over(self) -> bool:
        """Whether nothing of the run is left to do, after all sweeps."""
        for _ in range(SWEEPS):
            if self.looks.row("advance_workflows")["folded"] == 0:
                break
        self.looks.rows("reap")
        return all(run["finished_at"] is not None for run in self.all_runs())

    def all_runs(self) -> list[Row]:
        """The run, and those below it."""
        root = {"root_run_id": str(self.flow.run)}
        return [
            self.looks.row("get_workflow_run", run=self.flow.run),
            *self.looks.rows("list_workflow_runs", filter=root, limit=100),
        ]

    def _pass_time(self) -> None:
        """Nothing runs: resume the run, send a signal, or let an hour pass."""
        if any(run["state"] == "paused" for run in self.all_runs()):
            for run in self.all_runs():
                if run["state"] == "paused":
                    self.looks.rows("resume_workflow_run", run=run["run_id"])
            return
        open_steps = {n for n, row in self.flow.steps().items() if row["state"] == "running"}
        if awaited := sorted(self.unsent & open_steps):
            self._send(self.sessions[0], awaited[0])
            return
        self.clock.advance(timedelta(hours=1))
        self.looks.rows("reap")

    # What workers, nodes and operators do.

    def _act(self, *, operates: bool) -> None:
        session = self.chance.choice(self.sessions)
        if session.is_open and self.chance.random() < 0.6:
            session.end(self.chance.choice(["commit", "commit", "rollback", "kill"]), self.looks)
            return
        acts = [*[self._settle] * 6, self._sweep]
        acts += [self._settle_some, self._lose_node, self._replace_node]
        if operates:
            acts += [*[self._skip] * 2, self._pause, self._resume, self._send_any]
            acts += [self._verify] + [self._cancel] * (self.cancels and self.chance.random() < 0.3)
        act = self.chance.choice(acts)
        if not session.is_open and self.chance.random() < 0.5:
            session.begin()
        act(session)

    def _settle(self, session: Session) -> None:
        """Complete a lease or let it fail, after its handler may have added to its step."""
        free = sorted(self.claims, key=str)
        if not free:
            return
        key = self.chance.choice(free)
        claim = self.claims[key]
        if key[2] is None and key[1] == "s1" and self.chance.random() < 0.4:
            self._add(session, key, claim)
        outcome = "failed" if self.chance.random() < 0.3 else "completed"
        with refusals(session):  # an open sweep or cancel has asked it to stop
            if outcome == "failed":
                fail(session.calls, claim)
            elif session.is_open or self.chance.random() < 0.5:
                finish(session.calls, claim, result={"ok": True})
            elif self._settle_as_a_worker(claim) == "busy":
                return
            self._settled(session, [key], outcome)

    def _settle_as_a_worker(self, claim: Row) -> str:
        """Complete a claim in the call of a worker, which takes tallies; its verdict."""
        node, settled = claim["node"], {"lease_id": str(claim["lease_id"]), "outcome": "complete"}
        found = self.looks.row(
            "settle_and_claim", node=node.node_id, epoch=node.epoch, queues=[self.flow.queue],
            qty=0,
            settle=[settled | {"claim_token": claim["claim_token"], "result": {"ok": True}}],
        )  # fmt: skip
        assert found["verdict"] in ("ok", "busy")
        return str(found["verdict"])

    def _settled(self, session: Session, keys: Iterable[Key], outcome: str) -> None:
        """Note the ends of leases."""
        for key in keys:
            claim = self.claims.pop(key)
            self.settling[key] = claim

            def commits(key: Key = key) -> None:
                self.settling.pop(key)
                self.history.leases[key] = outcome

            def rolls_back(key: Key = key, claim: Row = claim) -> None:
                self.settling.pop(key)
                self.claims[key] = claim

            session.did(commits, rolls_back)

    def _settle_some(self, session: Session) -> None:
        """Complete several leases in one call, which holds nodes: it does not stay open."""
        free = sorted(self.claims, key=str)[:4]
        if not session.is_open and free:
            left = session.calls.rows(
                "complete_leases",
                lease_ids=[self.claims[key]["lease_id"] for key in free],
                tokens=[self.claims[key]["claim_token"] for key in free],
            )
            assert {row["verdict"] for row in left} <= {"busy"}
            busy = {row["ordinal"] for row in left}
            self._settled(session, [k for n, k in enumerate(free, 1) if n not in busy], "completed")

    def _add(self, session: Session, key: Key, claim: Row) -> None:
        """Add items and steps to the step of a lease; a second time they are there already."""
        held = {"lease": claim["lease_id"], "token": claim["claim_token"]}
        count = self.chance.randint(0, 2)
        with refusals(session):
            session.calls.rows("add_items", **held, items=[{"name": str(n)} for n in range(count)])
            most = max(count, self.history.added.get(key[:2], 0))
            if most:
                session.did(lambda: self.history.added.update({key[:2]: most}))
        if self.chance.random() < 0.3:
            spec = {"name": "added", "steps": steps_of(ADDED, ""), "on_failure": ADDED.on_failure}
            with refusals(session):
                run = session.calls.row("add_steps", **held, spec=spec)["run_id"]
                session.did(lambda: self.history.added_runs.update({key[:2]: [run]}))

    def _sweep(self, session: Session) -> None:
        session.calls.rows("advance_workflows", limit=self.chance.choice([1, 200]))

    def _lose_node(self, session: Session) -> None:
        """A node falls silent: its claims expire; the other one's go on."""
        dead, alive = self.chance.sample(self.nodes, 2)
        for _turn in range(2):
            self.clock.advance(timedelta(seconds=40))
            held = [
                {"lease_id": str(c["lease_id"]), "claim_token": c["claim_token"]}
                for c in self.claims.values() if c["node"] is alive
            ]  # fmt: skip
            self.looks.rows("heartbeat_node", node=alive.node_id, epoch=alive.epoch, claims=held)
        self.looks.rows("reap")
        self.is_shaken = True
        self._replace(dead)

    def _replace_node(self, session: Session) -> None:
        self._replace(self.chance.choice(self.nodes))

    def _replace(self, node: Node) -> None:
        """Another instance of a worker takes its node over, unless an open settlement holds it."""
        if any(claim["node"] is node for claim in self.settling.values()):
            return
        self.is_shaken = True
        with refusals(self.desk):  # a session that is open may hold a claim, one that has added, say
            self._register(node)

    def _operate(self, session: Session, function: str, **more: Any) -> list[Row]:
        """Make a call of an operator, and return its row, if it was done."""
        done: list[Row] = []
        with refusals(session):
            done += session.calls.rows(function, run=self.flow.run, **more)
        return done

    def _skip(self, session: Session) -> None:
        step = self.chance.choice(list(self.workflow(self.flow.run)))
        where = (self.flow.run, step.name)
        for row in self._operate(session, "skip_step", step=step.name, result=1) if not step.at_end else []:
            session.did(lambda: self.history.declared.add(where))
            if row["skip_step"] in ("failing", "failed"):
                session.did(lambda: setattr(self.history, "failing", True))

    def _pause(self, session: Session) -> None:
        self._operate(session, "pause_workflow_run")

    def _resume(self, session: Session) -> None:
        self._operate(session, "resume_workflow_run")

    def _cancel(self, session: Session) -> None:
        if self._operate(session, "cancel_workflow_run"):
            session.did(lambda: setattr(self.history, "cancelled", True))

    def _send_any(self, session: Session) -> None:
        if self.unsent:
            self._send(session, self.chance.choice(sorted(self.unsent)))

    def _send(self, session: Session, name: str) -> None:
        """Send a wait its signal."""
        if self._operate(session, "signal_workflow_run", name=name, payload=1):
            self.unsent.discard(name)
            session.did(lambda: self.history.sent.add((self.flow.run, name)), lambda: self.unsent.add(name))

    # What has come of it.

    def check(self) -> None:
        """Compare every run with the oracle; no invariant is broken."""
        self._verify(self.desk)
        self.ends(self.flow.run)

    def _verify(self, session: Session) -> None:
        """No invariant of these runs is broken, whatever is open."""
        ids = {str(run["run_id"]) for run in self.all_runs()}
        broken = [r for r in self.looks.rows("verify_invariants") if r["subject"] in ids]
        assert broken == [], broken

    def ends(self, run: UUID) -> dict[str, End]:
        """How the steps of a run have ended, which is as the oracle says; so with runs below."""
        workflow = self.workflow(run)
        rows = {row["step"]: row for row in self.looks.rows("list_workflow_steps", run=run)}
        seen = {name: (row["state"], row["reason"]) for name, row in rows.items()}
        told = self._told(run, rows)
        allowed = ends(workflow, told, seen)
        wrong = {name: (end, allowed[name]) for name, end in seen.items() if end not in allowed[name]}
        assert wrong == {}, f"ends that the oracle does not allow: {wrong}"
        state = self.looks.row("get_workflow_run", run=run)["state"]
        assert state == run_state(workflow, told, seen)
        return seen

    def _told(self, run: UUID, rows: dict[str, Row]) -> Told:
        """What the oracle is told of a run; the runs below it are compared first."""
        history = self.history
        runs = {}
        for name, row in rows.items():
            below = history.added_runs.get((run, name), [])
            below = [row["nested_run_id"]] if row["nested_run_id"] else below
            for each in below:
                self._remember(each)
                self.ends(each)
            runs[name] = [self.looks.row("get_workflow_run", run=each)["state"] for each in below]
        is_root = run == self.flow.run
        return Told(
            {(name, item): state for (of, name, item), state in history.leases.items() if of == run},
            {name: count for (of, name), count in history.added.items() if of == run},
            {name: states for name, states in runs.items() if states},
            {name for of, name in history.declared if of == run},
            {name for of, name in history.sent if of == run},
            history.cancelled
            if is_root
            else self.looks.row("get_workflow_run", run=run)["state"] == "cancelled",
            is_root and history.failing,
        )

    def retry(self) -> None:
        """Retry the run, in a mode that chance chooses."""
        seen = self.ends(self.flow.run)
        mode = self.chance.choice(MODES[2:4] if self.flow.state == "completed" else MODES)
        named: set[str] = set()
        options: Row = {"mode": mode}
        if mode == "steps":
            named = set(self.chance.sample(sorted(seen), min(2, len(seen))))
            options = {"steps": sorted(named)}
        self.looks.rows("retry_workflow_run", run=self.flow.run, options=options)
        self._forget(self.flow.run, seen, mode, named)
        self.history.cancelled = self.history.failing = False

    def _forget(self, run: UUID, seen: dict[str, End], mode: str, named: set[str]) -> None:
        """Forget the ends of what runs again: whole steps, or items that have not completed."""
        workflow = self.workflow(run)
        again = runs_again(workflow, seen, mode, named)
        rows = {row["step"]: row for row in self.looks.rows("list_workflow_steps", run=run)}
        for step in workflow:
            if step.name not in again:
                continue
            where = (run, step.name)
            has_items = step.kind == "map" or where in self.history.added or (
                where in self.history.added_runs)  # fmt: skip
            whole = mode == "all" or step.name in named or bool(again & set(step.after))
            whole = whole or step.kind == "gang"
            self.history.declared.discard(where)
            for key in [key for key in self.history.leases if key[:2] == where]:
                if whole or not has_items or self.history.leases[key] != "completed":
                    del self.history.leases[key]
            if whole:
                self.history.added.pop(where, None)
                self.history.added_runs.pop(where, None)
            below = [rows[step.name]["nested_run_id"], *self.history.added_runs.get(where, [])]
            for each in below:
                self._forget_below(each, "all" if mode == "all" else "failed")

    def _forget_below(self, run: UUID | None, mode: str) -> None:
        """The same for a run below a step that runs again."""
        if run is not None:
            seen = {
                row["step"]: (row["state"], row["reason"])
                for row in self.looks.rows("list_workflow_steps", run=run)
            }
            found = self.looks.row("get_workflow_run", run=run)
            leases = {key: s for key, s in self.history.leases.items() if key[0] == run}
            self.forgotten[run] = found["attempt"], leases
            self._forget(run, seen, "all" if found["state"] == "completed" else mode, set())

    def _remember(self, run: UUID) -> None:
        """Of a run below that was not retried after all, because its step is skipped now."""
        attempt, leases = self.forgotten.pop(run, (0, {}))
        if self.looks.row("get_workflow_run", run=run)["attempt"] == attempt:
            self.history.leases |= leases


@contextmanager
def refusals(session: Session) -> Iterator[None]:
    """Calls that may be refused, or meet a lock: they are undone, and their transaction goes on."""
    try:
        with session.conn.transaction():
            yield
    except psycopg.DatabaseError as error:
        if not str(error.sqlstate).startswith(("55P03", "QHF", "QHL", "QHN06")):
            raise
