"""Checks an installation and says what to change: what `hwqueue doctor` runs.

`facts` reads, once, what the checks look at. `server` and `work` are the checks: functions of those
facts, each with one subject. `examine` runs them in order.
"""

from hwqueue.doctor.examine import examine
from hwqueue.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
