"""Drawn workflows, and their specifications."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.calls import Row
from tests.flows import step as task
from tests.oracle.workflows import Step, Workflow

STURDY = 50  # attempts: a lease that outlives each of its nodes; others have one
POLICIES = ("continue", "finish_running", "fail_fast")
_WANTS = st.sampled_from(["completed", "completed", "completed", "failed", "ended"])
_KINDS = st.sampled_from(["task", "task", "task", "map", "sleep", "wait", "workflow"])
_BELOW = st.sampled_from(["task", "task", "map", "sleep"])
_NUMBERS = st.integers(0, 3)


@st.composite
def workflows(
    draw: st.DrawFn, policies: Sequence[str], most: int = 7, *, is_nested: bool = False
) -> Workflow:
    """A graph of up to so many steps, and finally steps, with one of these policies."""
    steps: list[Step] = []
    for number in range(draw(st.integers(1, most))):
        names = [step.name for step in steps]
        parents = draw(st.sets(st.sampled_from(names), max_size=3)) if names else set()
        kind = draw(_BELOW if is_nested else _KINDS)
        steps.append(
            Step(
                f"s{number}",
                kind,
                {parent: draw(_WANTS) for parent in sorted(parents)},
                any=draw(_NUMBERS) < 1 + (len(parents) > 1),
                on_failure=draw(st.sampled_from([None, None, None, "continue", "ignore"])),
                holds=draw(st.integers(0, 5)) > 0,
                **_of_kind(draw, kind),
            )
        )
    ends = st.sampled_from(["completed", "failed", "cancelled", "ended"])
    for number, at_end in enumerate(draw(st.lists(ends, max_size=2, unique=True))):
        steps.append(Step(f"f{number}", at_end=at_end))
    return Workflow(steps, draw(st.sampled_from(policies)))


@st.composite
def maps(draw: st.DrawFn) -> Workflow:
    """A map of more items, and a step that comes after it."""
    made = Step("s0", "map", items=draw(st.integers(0, 9)), at_once=draw(st.integers(1, 4)),
                tolerate=draw(_NUMBERS))  # fmt: skip
    return Workflow([made, Step("s1", after={"s0": "completed"})], draw(st.sampled_from(POLICIES)))


@st.composite
def gangs(draw: st.DrawFn) -> Workflow:
    """A gang between other steps."""
    steps = [
        Step("s0"),
        Step(f"s{draw(st.integers(1, 2))}", "gang", {"s0": "completed"},
             items=draw(st.integers(2, 4)),
             on_failure=draw(st.sampled_from([None, None, "continue", "ignore"]))),
        Step("s3", after={"s0": "ended"}),
    ]  # fmt: skip
    steps.append(Step("s4", after={steps[1].name: draw(_WANTS), "s3": "ended"}))
    return Workflow(steps, draw(st.sampled_from(POLICIES)))


def _of_kind(draw: st.DrawFn, kind: str) -> Mapping[str, Any]:
    """What steps of this kind have beside others."""
    if kind == "map":
        return {"items": draw(st.integers(0, 5)), "at_once": draw(st.integers(1, 3)),
                "tolerate": draw(st.integers(0, 2))}  # fmt: skip
    if kind == "wait":
        return {"times_out": draw(st.sampled_from([None, "failed", "skipped", "completed"]))}
    return {"runs": draw(workflows(POLICIES, 2, is_nested=True))} if kind == "workflow" else {}


def steps_of(workflow: Workflow, prefix: str) -> list[Row]:
    """The steps as a specification has them; nested runs are of workflows with this prefix."""
    return [_of_step(step, f"{prefix}-{step.name}") for step in workflow]


def _of_step(step: Step, below: str) -> Row:
    """One step as a specification has it."""
    after = [{"step": parent, "on": wants} for parent, wants in step.after.items()]
    kinds: dict[str, Row] = {
        "task": {},
        "map": {"over": list(range(step.items)), "max_parallel": step.at_once,
                "tolerate": step.tolerate},
        "gang": {"size": step.items},
        "sleep": {"for": 3600},
        "wait": {"signal": step.name},
        "workflow": {"workflow": below},
    }  # fmt: skip
    made = task(step.name, *after, kind=step.kind, **kinds[step.kind])
    if step.kind in ("task", "map", "gang"):
        made["options"] = {"max_attempts": STURDY if is_sturdy(step) else 1}
    else:
        del made["task"]
    if step.times_out is not None:
        verdicts = {"failed": "fail", "skipped": "skip", "completed": "continue"}
        made |= {"timeout": 7200, "on_timeout": verdicts[step.times_out]}
    if step.any and after:
        made["join"] = "any"
    if step.on_failure is not None:
        made["on_failure"] = step.on_failure
    if not step.holds:
        made["run_if"] = [{"input": ["ok"], "op": "in", "values": [False]}]
    return made | ({"finally": step.at_end} if step.at_end else {})


def is_sturdy(step: Step) -> bool:
    """Whether the death of a node does not end the leases of a step."""
    return step.name[-1] in "02468"
