"""Map-reduce: words are counted in shards, four at a time, and the counts are added up.

Each shard is a lease of its own, so shards run on as many machines as there are.
"""

from collections import Counter
from uuid import UUID

from hwqueue import App, Client, LeaseContext
from hwqueue.workflow import item, result, run_input

app = App()
flow = app.workflow(
    "map_reduce", queue="words", affinity_tags={"region": "us", "gpu": False}, result=result("top")
)
VERSE = "the cat sat on the mat and the dog sat on the cat"


@flow.step(params={"text": run_input("text"), "size": run_input("size")})
def split(text: list[str], size: int) -> dict[str, list[list[str]]]:
    """In earnest the shards are files, and this lists their names."""
    return {"shards": [text[at : at + size] for at in range(0, len(text), size)]}


@flow.step(over=result(split, "shards"), params={"lines": item()}, max_parallel=4, max_attempts=3)
def count(lines: list[str]) -> dict[str, int]:
    return dict(Counter(word for line in lines for word in line.split()))


@flow.step(after=count)
def add_up(context: LeaseContext) -> dict[str, int]:
    """Reads the counts page by page: they never are in memory all at once."""
    total: Counter[str] = Counter()
    for shard in context.results(count):
        total.update(shard.result)
    return total


@flow.step(params=result(add_up))
def top(totals: dict[str, int]) -> list[str]:
    return [word for word, _ in Counter(totals).most_common(3)]


pipeline = flow.workflow


def submit(client: Client, lines: int = 23, size: int = 2) -> UUID:
    words = VERSE.split()
    text = [" ".join(words[: 2 + line % 11]) for line in range(lines)]
    return pipeline.submit(client, {"text": text, "size": size}).run_id
