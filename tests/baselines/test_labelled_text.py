"""Texts with classes: what rows, splits and labels become, and that BERT learns to tell them apart."""

import json
from pathlib import Path

import pytest
import torch

from baselines.bert_tasks import LENGTH, BertClassifier
from baselines.labelled_text import is_labelled
from baselines.text import CLS, PAD, SEP, spelled
from suite.entries.adapting import baseline_for
from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.record.job import Job, Setting


def written(folder: Path, **parts: list[tuple[str, int]]) -> str:
    folder.mkdir(exist_ok=True)
    for part, examples in parts.items():
        lines = [
            json.dumps({"idx": number, "sentence": text, "label": label})
            for number, (text, label) in enumerate(examples)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    return str(folder)


def setting(location: str | None, **changes: object) -> Setting:
    return Setting(baseline="bert", size="pico", recipe="classic", task="adapt", data=location).but(**changes)


EXAMPLES = [(f"{'x' * (number % 9)} {'yes' if number % 2 else 'no'}", number % 2) for number in range(60)]


def test_a_row_is_a_text_and_has_its_class(tmp_path: Path) -> None:
    location = written(tmp_path / "a", train=[("Yes, it IS!", 1), ("no", 0), ("n" * 100, 0), *EXAMPLES])
    baseline = baseline_for(setting(location))
    assert isinstance(baseline, BertClassifier)
    data = baseline.data("pico", "adapt", location)
    rows = {spelled(row[1:]).partition(".")[0]: row for row in data.train.tensors["input_ids"]}
    longest = rows.get("n" * (LENGTH["pico"] - 1))
    if longest is not None:  # held out elsewhere
        assert longest[0] == CLS and SEP not in longest
    batch, _ = data.batch(0, 0, 8)
    tokens, labels, mask = batch["input_ids"], batch["labels"], batch["attention_mask"]
    assert torch.equal(mask.bool(), tokens != PAD)
    assert labels.shape == (8, 1) and set(labels.flatten().tolist()) <= {0, 1}
    assert data.classes == 2 and data.name.endswith("letters only, by class")


def test_unlabelled_tests_of_glue_are_not_tested_on(tmp_path: Path) -> None:
    hidden = [(text, -1) for text, _ in EXAMPLES[:5]]
    location = written(tmp_path / "b", train=EXAMPLES, validation=EXAMPLES[:7], test=hidden)
    data = baseline_for(setting(location)).data("pico", "adapt", location)
    assert (len(data.test), len(data.validation), len(data.train)) == (7, 6, 54)


def test_text_without_classes_and_numbers_that_are_none_stay_language(tmp_path: Path) -> None:
    (tmp_path / "numbered.jsonl").write_text('{"idx": 1, "text": "one"}\n{"idx": 2, "text": "two"}')
    assert not is_labelled(str(tmp_path / "numbered.jsonl"))
    for plain in (setting(str(tmp_path / "numbered.jsonl")), setting(None)):
        assert baseline_for(plain) is baseline_of(plain)
    location = written(tmp_path / "c", train=EXAMPLES)
    assert baseline_for(setting(location, task="pretrain")) is baseline_of(setting(None))


def test_one_class_is_refused(tmp_path: Path) -> None:
    location = written(tmp_path / "d", train=[(text, 0) for text, _ in EXAMPLES])
    with pytest.raises(ValueError, match="'label' is one class"):
        baseline_for(setting(location)).data("pico", "adapt", location)


def test_it_learns_to_tell_them_apart_and_padding_is_not_seen(tmp_path: Path) -> None:
    location = written(tmp_path / "e", train=EXAMPLES)
    own = setting(location, steps=60)
    run = run_of(Job(setting=own), baseline=baseline_for(own))
    run.train(60)
    assert run.evaluate("test")["accuracy"] > 0.8
    batch, _ = run.data.batch(0, 0, 4)
    run.model.eval()
    other = batch | {"input_ids": batch["input_ids"].where(batch["attention_mask"].bool(), 9)}
    one, two = (run.baseline.forward(run.model, each).logits for each in (batch, other))
    torch.testing.assert_close(one, two)


def test_the_checkpoint_is_trained_on_rows_as_long(tmp_path: Path) -> None:
    location = written(tmp_path / "f", train=EXAMPLES)
    own = setting(location)
    baseline = baseline_for(own)
    source = run_of(Job(setting=own.but(task="pretrain")), baseline=baseline, split="source")
    adapted = run_of(Job(setting=own), baseline=baseline)
    assert source.data.train.tensors["input_ids"].shape[1] == LENGTH["pico"]
    theirs, ours = source.model.state_dict(), adapted.model.state_dict()
    assert {name for name in ours if name.startswith("bert.")} <= theirs.keys()
    assert all(theirs[name].shape == each.shape for name, each in ours.items() if name.startswith("bert."))
