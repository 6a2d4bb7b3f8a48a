"""Nodes that are not there, placements that no lease has: forms, what they give, what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import unescape
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.dashboard import forms
from hwqueue.types import Gpu, NodeSpec, Taint
from tests.dashboard.conftest import Pages, serving
from tests.dashboard.test_pages import check
from tests.dashboard.visits import Visit


def form_of(text: str) -> dict[str, str]:
    """What stands in the fields of a page."""
    lines = re.findall(r'<input id="try-(\w+)" name="\w+" value="([^"]*)"', text)
    areas = re.findall(r'<textarea id="try-(\w+)"[^>]*>\n?([^<]*)</textarea>', text)
    return {name: unescape(value) for name, value in lines + areas}


def wrong_in(text: str) -> dict[str, str]:
    """What is said to be wrong, by the field that it stands at."""
    found = re.findall(r'<span class="wrong" id="wrong-(\w+)">(.*?)</div>', text, re.DOTALL)
    return {name: unescape(re.sub("<[^>]+>", " ", told)) for name, told in found}


async def get(pages: Pages, path: str, query: Mapping[str, str], status: int = 200) -> str:
    """A page asked for by a form."""
    answer = await pages.get(path, params=dict(query))
    assert answer.status_code == status, answer.text
    return answer.text


def test_what_is_typed_becomes_a_specification() -> None:
    spec = forms.node_of(
        {
            "labels": 'gpu_model=H100\nkernel = 6.8\nfast=true\nname="6.8"\n\nx=a=b',
            "cores": "1.5",
            "memory": "0.5",
            "gpus": "2",
            "gpu_model": "H100",
            "gpu_memory": "80",
            "rack": "4",
            "custom": "license=2",
            "taints": "dedicated=film:no_schedule\nodd:key:no_execute",
            "more": '{"slots": 3}',
            "count": "3",
        }
    )
    gpus = spec.pop("gpus")
    assert len({gpu.pop("resource_id") for gpu in gpus}) == 2
    assert gpus == [{"model": "H100", "memory_mib": 81_920}] * 2
    assert spec == {
        "labels": {"gpu_model": "H100", "kernel": 6.8, "fast": True, "name": "6.8", "x": "a=b"},
        "capacity": {"license": 2, "cpu_milli": 1500, "memory_mib": 512},
        "taints": [
            {"key": "dedicated", "value": "film", "effect": "no_schedule"},
            {"key": "odd:key", "effect": "no_execute"},
        ],
        "rack": 4,
        "slots": 3,
        "count": 3,
    }


@pytest.mark.parametrize(
    "value",
    [
        *("a", "6.8", "true", "null", "", " a ", "a\nb", '"', "3.10", "52e6410", "12.0"),
        *(1, 2.5, 12.0, 1e16, True, [1, "a"], {"a": 1}),
    ],
)
def test_a_label_is_typed_as_it_is_read(value: Any) -> None:
    text = forms.text_of(value)
    assert "\n" not in text
    assert forms.scalar(text.strip()) == value


async def test_what_is_wrong_stands_at_its_field(pages: Pages) -> None:
    def one_of(value: str) -> dict[str, object]:
        return {"label": "a", "op": "in", "values": [value]}

    wrong: tuple[tuple[dict[str, str], str, str], ...] = (
        ({"labels": "gpu_model"}, "labels", "is not key=value"),
        ({"cores": "many"}, "cores", "is no number"),
        ({"gpus": "5000"}, "gpus", "from 0 to 1,024"),
        ({"taints": "dedicated"}, "taints", "is not key=value:effect"),
        ({"more": '{"wings": 2}'}, "more", "wings"),
        ({"count": "0"}, "count", "spec.count"),
        ({"like": "nobody"}, "like", "no node is named"),
        ({"placement": "{"}, "placement", "line 1, column 2"),
        ({"placement": '{"resources": {"gpu": -1}}'}, "placement", "resources"),
        ({"placement": "{}", "queue": "nobody"}, "queue", "nobody"),
        ({"placement": json.dumps({"require": [one_of("1"), one_of("2")]})}, "placement", "a"),
    )
    for fields, place, words in wrong:
        text = await get(pages, "/try/placement" if "placement" in fields else "/try", fields, 422)
        check(text)
        assert list(wrong_in(text)) == [place], fields
        assert words in wrong_in(text)[place]
        assert f'id="try-{place}"' in text
        assert f'aria-describedby="wrong-{place}"' in text
        # what was typed is still there
        assert form_of(text)[place] == fields[place]


async def test_a_node_like_what_a_class_asks_would_run_it(seeded: str) -> None:
    with Client(seeded, pool_size=1) as client:
        rows = [row for row in client.pending_reasons() if row.nodes_matching == 0]
    assert len(rows) >= 4
    async with serving(seeded) as pages:
        for row in rows:
            text = await get(pages, "/try", {"for": str(row.class_id)})
            check(text)
            if "trust" in (row.words or ""):  # nobody has attested it
                assert "does not say all" in text
                assert "would not run" in text
                continue
            assert "Such a node would run" in text, row.words
            assert f'id="served-{row.class_id}"' in text
            # what stands in the form says the same when it is sent
            again = await get(pages, "/try", form_of(text))
            assert f'id="served-{row.class_id}"' in again


async def test_a_node_like_one_that_is_there(pages: Pages, sql: Client) -> None:
    whole, part = uuid4(), uuid4()
    spec = NodeSpec(
        name="n-1",
        instance_id="1",
        labels={"zone": "a", "version": "1.20", "gpus": 2, "os": {"name": "linux"}},
        rack=7,
        cpu_milli=2500,
        memory_mib=3 * 1024,
        custom={"license": 2},
        cores=[{"core": 0, "numa": 0, "threads": [0, 1]}],
        cpu_isolation=["whole_core"],
        gpus=[
            Gpu(resource_id=whole, model="A100", partitionable=True),
            Gpu(resource_id=part, model="A100", parent_resource_id=whole),
        ],
        taints=[Taint(key="dedicated", value="film", effect="no_schedule")],
        slots=4,
    )
    sql.register_node(uuid4(), spec)
    sql.taint_node(sql.list_nodes()[0].node_id, Taint(key="disk", effect="no_schedule"))
    text = await get(pages, "/try", {"like": "n-1"})
    form = form_of(text)
    form.pop("like")
    given = forms.node_of(form)
    assert given["labels"] == spec.labels
    assert given["capacity"] == {"license": 2, "cpu_milli": 2500, "memory_mib": 3072}
    assert given["taints"] == [{"key": "dedicated", "value": "film", "effect": "no_schedule"}]
    assert (given["rack"], given["slots"], given["cores"]) == (7, 4, spec.cores)
    assert [gpu["resource_id"] for gpu in given["gpus"]] == [str(whole), str(part)]
    # and it is one that could be registered
    assert "Nothing that is pending could run" in await get(pages, "/try", form)


async def test_a_placement_and_every_node(seeded: str) -> None:
    with Client(seeded, pool_size=1) as client:
        row = next(each for each in client.pending_reasons() if "H100" in (each.words or ""))
        nodes = len(client.list_nodes())
        asked = {"require": [{"tags": {"gpu_model": "H100"}}]}
        told = client.match_nodes(asked)
    async with serving(seeded) as pages:
        text = await get(pages, "/try/placement", {"placement": json.dumps(asked)})
        check(text)
        assert f"None of {nodes} nodes could take it now" in text
        assert len(re.findall(r'<tr id="match-', text)) == min(nodes, 50)
        assert all(each.message in unescape(text) for each in told[0].reasons)
        # only those that a reason keeps out
        code = told[-1].reasons[0].code
        rest = [node for node in told if code in {reason.code for reason in node.reasons}]
        text = await get(pages, "/try/placement", {"placement": json.dumps(asked), "reason": code})
        assert len(re.findall(r'<tr id="match-', text)) == len(rest) < nodes
        text = await get(pages, "/try/placement", {"placement": "{}"})
        assert re.search(r"\d+ of 48 nodes could take it now", text)
        # as a class asks
        text = await get(pages, "/try/placement", {"for": str(row.class_id)})
        assert "H100" in form_of(text)["placement"]
        assert form_of(text)["queue"] == "training"
        assert f"None of {nodes} nodes could take it now" in text


def test_from_why_to_a_node_that_would_help(visit: Visit, sql: Client) -> None:
    sql.create_queue("training")
    sql.register_node(uuid4(), NodeSpec(name="old-1", instance_id="1", labels={"gpu_model": "T4"}))
    h100 = {"require": [{"label": "gpu_model", "op": "in", "values": ["H100"]}]}
    sql.spawn_lease("training", "train", placement=h100)
    [row] = sql.pending_reasons()
    page = visit.go(f"/pending/{row.class_id}")
    page.get_by_role("link", name="Which node would help?").click()
    expect(page.get_by_label("Labels, a line each")).to_have_value("gpu_model=H100")
    expect(page.locator("main")).to_contain_text("Such a node would run gpu_model in H100")
    page.get_by_label("Labels, a line each").fill("gpu_model=T4")
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("main")).to_contain_text("would not run the class that you came from")
    page.get_by_label("Cores").fill("many")
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("#wrong-cores")).to_contain_text("'many' is no number")
    expect(page.get_by_label("Cores")).to_be_focused()
    assert all("status of 422" in each for each in visit.complaints)
    visit.complaints.clear()
    # the same node, with what it lacks
    visit.go(f"/pending/{row.class_id}")
    page.get_by_role("link", name="Try old-1 with it").click()
    expect(page.locator("main")).to_contain_text("Such a node would run gpu_model in H100")
    # the other way: a placement
    page.get_by_role("link", name="A placement", exact=True).click()
    page.get_by_label("Placement, as JSON").fill('{"require": [{"tags": {"gpu_model": "T4"}}]}')
    page.get_by_role("button", name="Try it").click()
    expect(page.locator("main")).to_contain_text("1 of 1 node could take it now")
