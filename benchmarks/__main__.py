"""`python -m benchmarks [OPTIONS] [QUESTION]`: the questions, each a command."""

from benchmarks.core.program import main, program
from benchmarks.questions.backlog import blocked, eligible, ineligible
from benchmarks.questions.classes import active, existing
from benchmarks.questions.cost import cost
from benchmarks.questions.dependents import dependents
from benchmarks.questions.events import events
from benchmarks.questions.fanin import fanin, releases
from benchmarks.questions.fleet import nodes, profiles
from benchmarks.questions.floor import floor
from benchmarks.questions.gangs import gangs
from benchmarks.questions.gateway import gateway
from benchmarks.questions.held import held
from benchmarks.questions.hooks import hooks
from benchmarks.questions.horizon import horizon
from benchmarks.questions.leases import payloads, priorities
from benchmarks.questions.limits import limits
from benchmarks.questions.others import others
from benchmarks.questions.pickup import pickup
from benchmarks.questions.smoke import smoke
from benchmarks.questions.spawn import spawns
from benchmarks.questions.throughput import batches, chains, connections
from benchmarks.questions.views import views
from benchmarks.questions.worker import worker
from benchmarks.questions.workflows import cancels, submissions, waiting

QUESTIONS = (
    floor,
    ineligible,
    blocked,
    dependents,
    eligible,
    active,
    existing,
    horizon,
    nodes,
    profiles,
    payloads,
    priorities,
    others,
    connections,
    batches,
    hooks,
    chains,
    fanin,
    releases,
    held,
    waiting,
    submissions,
    cancels,
    gangs,
    limits,
    spawns,
    worker,
    gateway,
    pickup,
    cost,
    views,
    events,
)

app = program((*QUESTIONS, smoke), by_default=QUESTIONS)

if __name__ == "__main__":
    main(app, "python -m benchmarks")
