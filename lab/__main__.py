"""`python -m lab QUESTION`: questions that need other queues, or many minutes.

See lab/peers/README.md.
"""

from benchmarks.core.program import main, program
from lab.before import before
from lab.gangs.question import gangs
from lab.peers.maps import maps
from lab.peers.question import peers
from lab.peers.routing import routing
from lab.peers.workers import workers
from lab.planner.question import solvers
from lab.soak.question import soak

app = program((peers, routing, workers, maps, soak, gangs, solvers, before))

if __name__ == "__main__":
    main(app, "python -m lab")
