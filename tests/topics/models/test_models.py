"""The matrix of models: what counts as working, refused or a defect; planted techniques on one family."""

import json
from pathlib import Path

import pytest
import torch

from suite.cli import Exit
from suite.entries.installed import baselines
from suite.loop.technique import Unavailable
from suite.model.anatomy import NoBlocks, anatomy
from suite.topics.models import tried_models as matrix
from suite.topics.models.survey import models, place_of
from suite.topics.models.trial import is_refusal
from suite.topics.models.tried_models import Cell, Model, ModelsMatrix, codes, stale
from tests import plugin

SCALES = """
def model(self, model, run):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model
"""
# what is planted -> its verdict, and what its reason must say
PLANTED = {
    "does_nothing": ("pass", "defect", "equals baseline to the bit"),
    "only_claims_to": ("def probes(self, run): return {'gain': 9.0}", "defect", "equals baseline to the bit"),
    "works_well": (SCALES, "works", ""),
    "is_frozen": ("def after_backward(self, run): return True", "defect", "no parameter moved"),
    "refuses": ("def model(self, model, run): raise ValueError('needs two heads')", "refused", "needs two heads"),
    "cannot": ("def data(self, data, run): raise Unavailable('needs 8 GPUs')", "refused", "needs 8 GPUs"),
    "stumbles": ("def model(self, model, run): return model.no_such_part", "defect", "AttributeError"),
    "counts_wrong": ("def model(self, model, run): a, b = [model]; return a", "defect", "ValueError: not enough"),
    "turns_nan": ("def loss(self, loss, outputs, batch, run): return loss * math.nan", "defect", "diverged"),
    "segfaults": ("def after_step(self, run): os.kill(os.getpid(), signal.SIGSEGV)", "defect", "SIGSEGV"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Cell]], int, str]:
    """One run of the command over all planted techniques: the cells, the exit code, what it printed."""
    root = plugin.write(tmp_path_factory.mktemp("models"), {name: body for name, (body, _, _) in PLANTED.items()})
    chosen = [word for name in PLANTED for word in ("-t", name)]
    done = plugin.leantrain(root, "models", "-m", "opt", *chosen, "--json", "--results", "results")
    assert done.stdout, done.stderr
    kept = matrix.read(root / "results")
    assert kept is not None and done.stdout.count("\n") > 10
    assert json.loads(done.stdout)["cells"].keys() == kept.cells.keys()
    with plugin.installed(root):
        code, told, error = plugin.called("models", "-m", "opt", *chosen, "--results", "results")
    assert code == done.returncode and " % " not in error, "nothing is tried twice"
    return {name: dict(row) for name, row in kept.cells.items()}, done.returncode, told


@pytest.mark.parametrize("name", PLANTED)
def test_every_planted_technique_ends_as_it_should(name, planted):
    _, verdict, words = PLANTED[name]
    cells, _, _ = planted
    assert cells[name].keys() == {"opt"}
    for cell in cells[name].values():
        assert cell.verdict == verdict
        assert words in cell.reason


def test_a_defect_ends_the_command_with_1_and_spoils_no_other_cell(planted):
    cells, code, printed = planted
    assert code == Exit.REGRESSED
    assert "defect: does_nothing on opt: " in printed
    assert {cell.verdict for cell in cells["baseline"].values()} == {"works"}


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_only_what_the_project_raises_on_purpose_is_a_refusal():
    assert is_refusal(raised(lambda: anatomy(torch.nn.Linear(2, 2))))
    assert not is_refusal(raised(lambda: torch.nn.MultiheadAttention(3, 2))), "torch's own assertion"
    assert not is_refusal(raised(lambda: torch.optim.AdamW([]))), "a ValueError of torch's"
    assert not is_refusal(NoBlocks("never raised")) and not is_refusal(Unavailable(""))


def test_there_are_sixty_families_and_more_of_every_kind():
    every = models()
    by_baseline = {name: [m for m, (b, family) in every.items() if b == name and family] for name in baselines()}
    assert sum(map(len, by_baseline.values())) >= 60
    assert all(by_baseline.values())
    refused = {name for name, (_, family) in every.items() if family and not family.transformer}
    assert refused == {"mamba", "fnet", "timm_convnext", "hf_resnet"}


def cells(**rows: str) -> dict[str, dict[str, Cell]]:
    """``lion="w"``: cells of the models m0, m1, ... by their verdicts' first letters."""
    verdicts = {verdict[0]: verdict for verdict in matrix.VERDICTS}
    return {name: {f"m{i}": Cell(verdict=verdicts[v]) for i, v in enumerate(row)} for name, row in rows.items()}


MODELS = {"m0": Model(baseline="gpt"), "m1": Model(baseline="vit")}


def test_newer_cells_win_and_no_others_go():
    old = ModelsMatrix(models=MODELS, cells=cells(kept="wd", other="ww"))
    works = {"m1": Cell(verdict="works", code="b")}
    both = old.with_newer(ModelsMatrix(models=MODELS, cells={"kept": works}))
    assert {name: [*row] for name, row in both.cells.items()} == {"kept": ["m0", "m1"], "other": ["m0", "m1"]}
    assert not both.defects() and both.cells["kept"]["m1"].code == "b" and len(old.defects()) == 1
    assert [*both.of({"kept"}, ["vit"]).placed()] == [("kept", "m1", works["m1"])]
    current = both.current({"kept": {"m0": "b", "m1": "b"}, "other": {}})
    assert {name: [*row] for name, row in current.cells.items()} == {"kept": ["m1"]}, "only what is of today's code"


def test_a_cells_code_is_that_of_its_technique_and_of_its_models_configuration():
    models = {"opt": Model(baseline="gpt", sha256="a"), "wider": Model(baseline="gpt", sha256="b")}
    now = codes(["lion", "sam"], models)
    assert len({code for row in now.values() for code in row.values()}) == 4
    of_now = {
        "lion": {"opt": Cell(verdict="works", code=now["lion"]["opt"]), "wider": Cell(verdict="works", code="old")}
    }
    assert stale(ModelsMatrix(models=models, cells={**of_now, "gone": of_now["lion"]})) == {
        ("lion", "wider"),
        ("gone", "opt"),
        ("gone", "wider"),
    }


def test_a_matrix_is_read_as_it_was_written_and_a_damaged_one_says_so(tmp_path: Path):
    assert matrix.read(tmp_path) is None
    kept = ModelsMatrix(made="2026-01-01", models=MODELS, cells=cells(lion="wr", sam="id"))
    matrix.write(kept, tmp_path)
    assert matrix.read(tmp_path) == kept
    (tmp_path / matrix.NAME).write_text("{")
    with pytest.raises(ValueError, match="delete it and make it again"):
        matrix.read(tmp_path)
    assert "delete it" in matrix.read_or_why(tmp_path)[1][0]


TINY = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def test_a_folder_of_a_user_is_tried_in_the_first_place_that_takes_it_and_nothing_is_kept(tmp_path):
    own = tmp_path / "mine"
    own.mkdir()
    (own / "config.json").write_text(json.dumps({"model_type": "llama", **TINY}))
    asked = ("-t", "lion", "-t", "progressive_patch", "--json", "--results", str(tmp_path))
    code, told, _ = plugin.called("models", str(own), *asked)
    said = json.loads(told)
    assert (code, said["models"]["mine"]["baseline"]) == (0, "gpt")
    assert {name: row["mine"]["verdict"] for name, row in said["cells"].items()} == {
        "baseline": "works",
        "lion": "works",
        "progressive_patch": "inapplicable",
    }
    assert not (tmp_path / matrix.NAME).exists()


def test_a_folder_that_no_baseline_takes_is_refused_with_each_ones_reason(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dpr"}))
    with pytest.raises(ValueError, match=r"no baseline has a place for this model; bert: .*vit: "):
        place_of(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no config\.json there"):
        place_of(tmp_path / "none")
