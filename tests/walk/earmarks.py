"""Room that is kept for the first gang that does not fit."""

from tests.walk import more_steps as m
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.promises import books_open_nodes, keeps_its_room
from tests.walk.world import World, every, gpus, needs

# One gang needs all devices, one of which is in use; another one waits behind it.
KEPT = World(
    "kept",
    policy={"earmarks": 1},
    nodes={"n": gpus(2, "n"), "m": gpus(1, "m")},
    leases={"s": needs(gpu=1), "t": needs(gpu=1)},
    gangs={"g": {"members": "abc", "each": needs(gpu=1)}, "h": {"members": "de", "each": needs(gpu=1)}},
    first=[s.Claim("n"), s.Reap()],
    steps=[
        s.Claim("n", 2),
        s.Claim("m"),
        *every(s.Complete, "sa"),
        s.Release("b"),
        m.CancelGang("g"),
        o.Cordon("m"),
        o.Uncordon("m"),
        o.RestartAlike("n"),
        s.Wait(),
        s.Reap(),
    ],
    promises=[keeps_its_room, books_open_nodes],
    near=2,
)
