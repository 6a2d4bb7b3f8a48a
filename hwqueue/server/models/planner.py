"""What the planner says."""

from hwqueue.server.models.derived import answer_of
from hwqueue.types import PlannerStatus

PlannerOut = answer_of(PlannerStatus)
