"""The context study, quick: every cell of the table, the same twice, and what it refuses."""

import json
from types import SimpleNamespace

import pytest
import torch

from sharpmax.experiments.context import run
from sharpmax.experiments.context.plan import ARMS, plan_for
from sharpmax.experiments.context.study import Study
from sharpmax.experiments.context.summary import summarise
from sharpmax.runs.run_folder import RunFolder
from tests.hf.tiny import tiny
from tests.marks import slow

SMALL = {"quick": True, "factors": (2,), "scalings": ("none", "yarn"), "documents": 1}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr("sharpmax.hf.models.tiny_llama.STEPS", 2)


def cell(metrics, scaling, arm, factor=2):
    return next(c for c in metrics["cells"] if (c["scaling"], c["arm"], c["factor"]) == (scaling, arm, factor))


@pytest.mark.slow
def test_a_part_of_the_table_then_more_of_it_in_the_same_folder(tmp_path):
    first = run(tmp_path, arms=("nothing",), parts=("text",), **SMALL)
    assert {(c["scaling"], c["arm"]) for c in first["cells"]} == {(s, "nothing") for s in SMALL["scalings"]}
    plain = cell(first, "none", "nothing")
    assert len(plain["perplexity_by_block"]) == 8
    assert plain["against"] == {}
    folder = tmp_path / "context" / "tiny-quick-seed0"
    kept = {file.name: file.read_bytes() for file in (folder / "steps").glob("*.json")}
    whole = run(tmp_path, arms=("nothing", "log-n"), **SMALL)
    assert all((folder / "steps" / name).read_bytes() == content for name, content in kept.items())
    yarn = cell(whole, "yarn", "log-n")
    assert set(yarn["against"]) == {"no scaling", "nothing"}
    assert yarn["against"]["nothing"]["beyond"]["items"] == 4
    assert set(yarn["short"]) == {"16", "32"}
    assert yarn["tasks"]["copy"]["questions"] == 2
    assert json.loads((folder / "page.json").read_text())["blocks"]
    again = run(tmp_path, arms=("nothing", "log-n"), gather=True, **SMALL)
    assert again["cells"] == whole["cells"]


@pytest.mark.parametrize("arm", slow("beta", "fitted", "lora", "seal", "seal-channel", "headscale"))
def test_every_arm_that_is_listed_can_be_computed(arm, tmp_path):
    told = run(tmp_path, arms=("nothing", arm), parts=("text",), **{**SMALL, "scalings": ("yarn",)})
    assert cell(told, "yarn", arm)["against"]["nothing"]["documents"] == 1


def test_a_part_of_a_cell_is_computed_once_and_leaves_the_model_as_it_was(tmp_path):
    loaded = tiny("llama", max_position_embeddings=64)
    ids = torch.arange(5, 45)[None]
    before = loaded.model(ids).logits
    plan = plan_for(quick=True, documents=1, arms=("log-n",), scalings=("yarn",), factors=(2,))
    study = Study(plan, loaded, RunFolder.open(tmp_path, "context", "small", {}), seed=0)
    assert [key[3] for key in study.parts()] == ["text0", "short", "ask-copy"]
    found = study.part(("yarn", "log-n", 2, "text0"))
    assert found["tokens"] == 128
    assert len(found["blocks"]) == 128 // plan.block
    assert study.part(("yarn", "log-n", 2, "text0")) == found
    assert torch.equal(loaded.model(ids).logits, before)
    plain = Study(plan, loaded, study.folder, seed=0).part(("none", "nothing", 2, "text0"))
    assert plain["document"] == found["document"]
    assert plain["blocks"] != found["blocks"]


def test_nothing_to_compute_and_nothing_to_gather_are_refused(tmp_path):
    assert "shipped" not in plan_for(quick=False, model="my-model").arms
    for options, said in (
        ({"scalings": ("yarn",), "factors": (1,)}, "leave nothing to compute: text, short, ask of yarn at 1 times"),
        ({"gather": True}, "holds no cells yet; run it without --gather"),
    ):
        with pytest.raises(ValueError, match=said):
            run(tmp_path, quick=True, **options)


def test_cells_of_an_earlier_call_are_told_too(tmp_path):
    options = {**SMALL, "parts": ("text",), "scalings": ("self-extend",)}
    run(tmp_path, arms=("log-n",), **options)
    told = run(tmp_path, arms=("nothing",), **{**options, "scalings": ("yarn", "none")})
    found = {(one["scaling"], one["arm"], one["factor"]) for one in told["cells"]}
    assert found == {("self-extend", "log-n", 2), ("yarn", "nothing", 2), ("none", "nothing", 2)}


def test_cells_of_other_products_are_not_mixed(tmp_path):
    options = {**SMALL, "scalings": ("none",), "parts": ("text",), "arms": ("nothing",)}
    run(tmp_path, **options)
    place = tmp_path / "context" / "tiny-quick-seed0"
    config = {k: v for k, v in json.loads((place / "config.json").read_text()).items() if k != "sharpmax"}
    folder = RunFolder.open(tmp_path, "context", "tiny-quick-seed0", config)
    plan, model = plan_for(quick=True, arms=("nothing",)), SimpleNamespace(context=8)
    on_a_gpu = Study(plan, model, folder, seed=0, products="bfloat16")
    with pytest.raises(ValueError, match="products in float32, and this device has them in bfloat16; choose another"):
        on_a_gpu.must_be_alike()


def test_the_full_plan_crosses_everything():
    assert plan_for(quick=False).arms == tuple(ARMS)
    assert set(plan_for(quick=False).factors) == {1, 2, 4, 8}


def test_a_summary_pairs_blocks_of_the_same_document_alone():
    def text(name, *blocks):
        return {"document": name, "tokens": 40, "blocks": list(blocks)}

    cells = {
        ("none", "nothing", 2.0, "text0"): text("a", 1.0, 1.0, 3.0, 4.0),
        ("none", "nothing", 2.0, "text1"): text("b", 1.0, 1.0, 3.0, 5.0),
        ("yarn", "nothing", 2.0, "text0"): text("a", 1.1, 1.1, 1.0, 1.5),
    }
    told = summarise(cells, trained=20, block=10)
    yarn = cell(told, "yarn", "nothing")["against"]["no scaling"]
    assert yarn["documents"] == 1
    assert yarn["beyond"]["items"] == 2
    assert yarn["beyond"]["rise"] == pytest.approx(2.718281828 ** ((-2.0 - 2.5) / 2) - 1)
    assert yarn["within"]["rise"] == pytest.approx(2.718281828**0.1 - 1)
