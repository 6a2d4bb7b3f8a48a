import dataclasses

from tests.walk import operators as o
from tests.walk import preempts as p
from tests.walk import steps as s
from tests.walk import worlds
from tests.walk.world import every

base = p.PREEMPTS
worlds.WORLDS["small1"] = dataclasses.replace(
    base,
    name="small1",
    nodes={"n": base.nodes["n"]},
    leases={"v": p._of("third")},
    first=[s.Claim("n")],
    steps=[
        s.Spawn("a", p._of("first")),
        s.Claim("n"),
        *every(s.Complete, "av"),
        s.Release("v"),
        s.Cancel("a"),
        o.Cordon("n"),
        o.Uncordon("n"),
        p.Beat("n"),
        s.Wait(),
        p.ReapTiers(),
    ],
)
worlds.WORLDS["small2"] = dataclasses.replace(
    base,
    name="small2",
    steps=[
        s.Spawn("a", p._of("first")),
        s.Claim("n"),
        s.Claim("m"),
        s.Complete("a"),
        *every(s.Release, "vw"),
        s.Wait(),
        p.ReapTiers(),
    ],
)
