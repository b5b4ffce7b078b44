"""Every script of the page of trainers is short, and runs as it stands where its library is installed."""

from __future__ import annotations

import ast
import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text("utf-8")
SCRIPTS = dict(re.findall(r'^```python title="(with_\w+)\.py"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
LEARNS = re.compile(r"loss ([\d.]+) -> ([\d.]+) in 20 steps")


def libraries(script: str) -> set[str]:
    modules = (node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.ImportFrom | ast.Import))
    return {
        (module.module or "" if isinstance(module, ast.ImportFrom) else module.names[0].name).partition(".")[0]
        for module in modules
    }


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """What a script prints last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(name: str, lines: int = 1) -> list[str]:
        if absent := [each for each in libraries(SCRIPTS[name]) if find_spec(each) is None]:
            pytest.skip(f"not installed: pip install {' '.join(absent)}")
        (tmp_path / f"{name}.py").write_text(SCRIPTS[name])
        runpy.run_path(str(tmp_path / f"{name}.py"))
        return capsys.readouterr().out.strip().splitlines()[-lines:]

    return run


def test_there_are_six_scripts_of_at_most_thirty_lines() -> None:
    assert len(SCRIPTS) == 6
    assert {name: len(text.splitlines()) for name, text in SCRIPTS.items() if len(text.splitlines()) > 30} == {}


@pytest.mark.parametrize("name", ["with_trainer", "with_accelerate", "with_fabric", "with_litgpt"])
def test_it_learns(name: str, said) -> None:
    learned = LEARNS.search(said(name)[0])
    assert learned and float(learned[2]) < float(learned[1]) - 0.1


def test_sft_trains_alike_as_it_is_with_its_own_checkpointing_and_within_a_budget(said) -> None:
    plain, checkpointed, fitted = said("with_trl")[0].split()
    assert float(plain) == float(checkpointed) == float(fitted)


def test_a_budget_gives_torchtitan_the_gradients_of_full_checkpointing(said) -> None:
    plan, same = said("with_torchtitan", 2)
    assert "3 of 4 blocks run again" in plan and same == "True"
