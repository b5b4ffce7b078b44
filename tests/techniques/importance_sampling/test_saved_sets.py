"""Pruned sets as files: written whole, read as data, refused where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.data import Data, Examples
from suite.loop.run import Run
from suite.record.files import replacing
from techniques.importance_sampling.shared import saved_sets
from techniques.importance_sampling.shared.saved_sets import examples_sha256, kept_by, pruned_set, save
from tests.runs import new_run

EXAMPLES = Examples({"x": torch.arange(40, dtype=torch.float32).view(20, 2), "labels": torch.arange(20) % 3})
DATA = Data("numbers", "0" * 64, EXAMPLES, EXAMPLES, EXAMPLES, lambda batch, generator: batch)
SETTINGS = {"keep": "0.5"}


def stored(path: Path, kept: list[int]) -> Path:
    save(pruned_set(DATA, torch.tensor(kept), "grand", SETTINGS, 20, 0), path)
    return path


@given(kept=st.sets(st.integers(0, 19), min_size=1))
@settings(max_examples=20, deadline=None)
def test_what_was_kept_comes_back(kept: set[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = stored(tmp_path_factory.mktemp("sets") / "kept.json", sorted(kept))
    back = kept_by(path, DATA, "grand", SETTINGS, 20)
    assert back is not None and back.dtype == torch.int64 and back.tolist() == sorted(kept)
    assert [each.name for each in path.parent.iterdir()] == ["kept.json"]


def test_no_file_is_no_choice_yet(tmp_path: Path) -> None:
    assert kept_by(tmp_path / "none.json", DATA, "grand", SETTINGS, 20) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kept": [3, 3]}, "stands in it once"),
        ({"kept": [5, 3]}, "stands in it once"),
        ({"kept": []}, "kept"),
        ({"kept": [-1, 3]}, "outside of its 20 examples"),
        ({"kept": [3, 20]}, "outside of its 20 examples"),
        ({"kept": [1.5]}, "kept"),
        ({"kept": "import os"}, "kept"),
        ({"schema_version": 2}, "newer than 1"),
        ({"more": 1}, "more"),
        ({"examples_sha256": "f" * 64}, "chosen among other examples .numbers, sha256 ffffffffffff. than these"),
        ({"technique": "el2n"}, "chosen with technique=el2n .here grand."),
        ({"settings": {"keep": "0.3"}}, "chosen with keep=0.3 .here 0.5."),
        ({"candidates": 12}, "chosen with candidates=12 .here 20."),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "kept.json", [1, 2])
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=message) as refusal:
        kept_by(path, DATA, "grand", SETTINGS, 20)
    assert str(refusal.value).startswith(f"saved={path}: ") and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_bytes(path.read_bytes()[:60]), lambda path: path.write_bytes(b"\x80\x04N.")]
)
def test_half_a_file_and_a_pickle_are_refused(spoil: Callable[[Path], Any], tmp_path: Path) -> None:
    path = stored(tmp_path / "kept.json", [1, 2])
    spoil(path)
    with pytest.raises(ValueError, match="damaged; name another path"):
        kept_by(path, DATA, "grand", SETTINGS, 20)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it cannot be read: "):
        kept_by(tmp_path, DATA, "grand", SETTINGS, 20)
    with pytest.raises(ValueError, match="it cannot be written: "):
        stored(stored(tmp_path / "kept.json", [1]) / "below", [1])


def test_a_write_that_is_cut_off_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = stored(tmp_path / "kept.json", [1, 2])

    def torn(pruned: Any, path: Path) -> None:
        with replacing(path) as partial:
            partial.write_text("{")
            raise KeyboardInterrupt

    monkeypatch.setattr(saved_sets, "write_json", torn)
    with pytest.raises(KeyboardInterrupt):
        stored(path, [3])
    assert kept_by(path, DATA, "grand", SETTINGS, 20).tolist() == [1, 2]  # type: ignore[union-attr]
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]


def test_the_hash_is_of_names_types_shapes_and_values() -> None:
    x = torch.arange(6)
    columns = [{"x": x}, {"y": x}, {"x": x.int()}, {"x": x.view(6, 1)}, {"x": x + 1}, {"x": x, "y": x}]
    assert len({examples_sha256(Examples(each)) for each in columns}) == len(columns)
    assert examples_sha256(Examples({"x": x, "y": x})) == examples_sha256(Examples({"y": x.clone(), "x": x}))


def test_a_saved_choice_serves_other_runs_without_scoring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    first = new_run("vit", f"grand:runs=1,saved={path}", size="pico", recipe="classic", steps=4)
    assert json.loads(path.read_text())["technique"] == "grand"
    plain = new_run("vit", "grand:runs=1", size="pico", recipe="classic", steps=4)
    losses = plain.train(2)
    monkeypatch.setattr(Run, "scout", lambda *_, **__: pytest.fail("it was scored again"))
    again = new_run("vit", f"grand:runs=1,saved={path}", size="pico", recipe="classic", steps=4)
    assert first.train(2) == again.train(2) == losses
    other_seed = new_run("vit", f"grand:runs=1,saved={path}", size="pico", recipe="classic", steps=4, seed=1)
    assert torch.equal(other_seed.data.train.tensors["pixels"], again.data.train.tensors["pixels"])
    with pytest.raises(ValueError, match=r"chosen with keep=0.5 .here 0.25."):
        new_run("vit", f"grand:keep=0.25,runs=1,saved={path}", size="pico", recipe="classic", steps=4)
