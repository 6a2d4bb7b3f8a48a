"""What room on GPUs is worth, and where gangs go: `hwqueue planner`; needs `[planner]`.

`Planner` leads, reads, solves and writes, again and again. `Program` is the linear program of which
prices are made.
"""

from hwqueue.extras import needs
from hwqueue.planner.model import Demand, Pool

with needs("planner"):
    from hwqueue.planner.process import Planner, Round
    from hwqueue.planner.program import Program, Solution
    from hwqueue.planner.settings import Settings

__all__ = ["Demand", "Planner", "Pool", "Program", "Round", "Settings", "Solution"]
