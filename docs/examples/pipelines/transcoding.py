"""Video transcoding: three renditions on different hardware, a preview as soon as one is there."""

from itertools import groupby
from typing import Any
from uuid import UUID

from hwqueue import App, Client, LeaseContext, Placement, Reject, Step, Workflow
from hwqueue.workflow import ended, result, run_input

app = App()
RENDITIONS = ("h264", "av1", "thumbnail")
Runs = list[tuple[int, int]]  # how often, which pixel


def pack(pixels: bytes) -> Runs:
    return [(len(list(run)), pixel) for pixel, run in groupby(pixels)]


def unpack(runs: Runs) -> bytes:
    return b"".join(bytes([pixel]) * count for count, pixel in runs)


@app.task("video.probe", queue="video")
def probe(frame: Runs, width: int) -> dict[str, Any]:
    count = len(unpack(frame))
    if count % width:
        raise Reject(f"{count} pixels are no rows of {width}")
    return {"width": width, "height": count // width, "frame": frame}


@app.task("video.render", queue="video")
def render(video: dict[str, Any], shrink: int, levels: int) -> dict[str, Any]:
    """Every n-th pixel of every n-th row, in fewer shades of grey."""
    width, step = video["width"], 256 // levels
    pixels = unpack(video["frame"])
    rows = [pixels[at : at + width : shrink] for at in range(0, len(pixels), width * shrink)]
    reduced = bytes(pixel // step * step for row in rows for pixel in row)
    return {"width": len(rows[0]), "data": pack(reduced)}


@app.task("video.preview", queue="video")
def preview(context: LeaseContext) -> str:
    """Of whichever rendition came first."""
    done = {name: context.result(name) for name in RENDITIONS}
    first = next(name for name, rendition in done.items() if rendition)
    return f"{first}, {done[first]['width']} wide"


@app.task("video.package", queue="video")
def package(context: LeaseContext) -> dict[str, int]:
    done = {name: context.result(name) for name in RENDITIONS}
    return {name: len(rendition["data"]) for name, rendition in done.items() if rendition}


def rendition(name: str, shrink: int, levels: int, **where: Any) -> Step:
    params = {"video": result("probe"), "shrink": shrink, "levels": levels}
    return Step(name, render, params=params, on_failure="continue", **where)


pipeline = Workflow(
    name="transcoding",
    queue="video",
    affinity_tags={"region": "us"},
    tasks=[
        Step("probe", probe, params={"frame": run_input("frame"), "width": run_input("width")}),
        rendition("h264", 1, 16, affinity_tags={"encoder": "nvenc"}),
        rendition("av1", 2, 64, placement=Placement().resources(cpu_milli=16000)),
        rendition("thumbnail", 8, 256, affinity_tags={"arch": "arm64"}),
        Step("preview", preview, after=RENDITIONS, join="any", options={"priority": 10}),
        Step("package", package, after=[ended(name) for name in RENDITIONS]),
    ],
    result=result("package"),
)


def submit(client: Client, width: int = 64) -> UUID:
    frame = bytes((x * y) % 256 for y in range(48) for x in range(64))
    return pipeline.submit(client, {"frame": pack(frame), "width": width}).run_id
