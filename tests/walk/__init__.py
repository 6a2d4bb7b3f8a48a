"""The SQL as its own model checker: every order of whole calls on a small world.

A world is a few nodes and leases and the calls that may be made (worlds.py). The walk goes depth
first (explore.py): from each state it makes every call, checks what it did to each lease
(steps.py), that all invariants hold (rules.py) and that every lease can still end (closing.sql),
and goes back (ground.py). A state that it has met before (canonical.py) is not walked again.
"""
