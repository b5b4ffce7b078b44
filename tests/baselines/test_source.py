"""Users' data of every kind, made here, read back; and what cannot be used, refused with a reason."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from baselines import images, source, text
from baselines.bert import Bert
from baselines.gpt import LENGTH, Gpt
from baselines.mae import Mae
from baselines.vit import Vit

datasets = pytest.importorskip("datasets")

LINES = [f"the {ordinal} line of a small text, long enough to be split into several tokens" for ordinal in range(200)]


def _write_text(folder: Path, kind: str) -> Path:
    if kind == "text":
        path = folder / "data.txt"
        path.write_text("\n\n".join(LINES))
    elif kind == "csv":
        path = folder / "data.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "content"], *([i, line] for i, line in enumerate(LINES))])
    elif kind == "json":
        path = folder / "data.json"
        path.write_text(json.dumps([{"id": i, "text": line} for i, line in enumerate(LINES)]))
    elif kind == "jsonl":
        path = folder / "data.jsonl"
        path.write_text("\n".join(json.dumps({"sentence": line}) for line in LINES))
    elif kind == "saved":
        path = folder / "saved"
        datasets.Dataset.from_dict({"text": LINES}).save_to_disk(path)
    else:
        path = folder / "data.parquet"
        datasets.Dataset.from_dict({"other": LINES[::-1], "text": LINES}).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["text", "csv", "json", "jsonl", "parquet", "saved"])
def test_text_of_every_kind_is_read_whole(tmp_path, kind):
    found = source.texts(str(_write_text(tmp_path, kind)), limit_bytes=1 << 20)
    assert sorted(found.train + found.validation + found.test) == sorted(LINES)
    assert len(found.test) == round(source.HELD_OUT * len(LINES))
    assert len(found.validation) == round(source.HELD_OUT * (len(LINES) - len(found.test)))


def test_held_out_texts_do_not_depend_on_order(tmp_path):
    parts = []
    for name, lines in (("a.txt", LINES), ("b.txt", LINES[::-1])):
        (tmp_path / name).write_text("\n".join(lines))
        found = source.texts(str(tmp_path / name), 1 << 20)
        parts.append((set(found.validation), set(found.test)))
    assert parts[0] == parts[1]


def test_files_named_after_splits_are_those_splits(tmp_path):
    for name, lines in (("train", LINES[:100]), ("validation", LINES[100:150]), ("test", LINES[150:])):
        datasets.Dataset.from_dict({"text": lines}).to_parquet(tmp_path / f"{name}-00000-of-00001.parquet")
    (tmp_path / "README.txt").write_text("not data")
    found = source.texts(str(tmp_path), 1 << 20)
    assert (found.train, found.validation, found.test) == (LINES[:100], LINES[100:150], LINES[150:])
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    found = source.texts(str(tmp_path), 1 << 20)
    assert found.test == LINES[100:150], "the only part held out is the one to report on"
    assert sorted(found.train + found.validation) == sorted(LINES[:100]), "and validation takes of the training part"


def test_what_is_left_out_is_said(tmp_path):
    found = source.texts(str(_write_text(tmp_path, "text")), limit_bytes=1000)
    assert f"of {len(LINES)} training examples" in found.name
    assert len(found.train) + len(found.validation) + len(found.test) < 20


def _pictures(count: int, seed: int = 0) -> list[Image.Image]:
    values = np.random.default_rng(seed).integers(0, 256, (count, 9, 7, 3), dtype=np.uint8)
    return [Image.fromarray(value) for value in values]


def _write_images(folder: Path, kind: str) -> Path:
    labels = [i % 3 for i in range(60)]
    if kind == "folder":
        for i, (image, label) in enumerate(zip(_pictures(60), labels, strict=True)):
            path = folder / ("train" if i < 48 else "test") / f"class{label}"
            path.mkdir(parents=True, exist_ok=True)
            image.save(path / f"{i}.png")
        return folder
    if kind == "array":
        columns = {"pixels": [np.asarray(image) for image in _pictures(60)], "label": labels}
        features = {"pixels": datasets.Array3D((9, 7, 3), "uint8"), "label": datasets.Value("int32")}
    elif kind == "list":
        columns = {"digit": [np.asarray(image.convert("L")).tolist() for image in _pictures(60)], "y": labels}
        features = {"digit": datasets.List(datasets.List(datasets.Value("int64"))), "y": datasets.Value("int64")}
    else:
        columns = {"photo": _pictures(60), "label": labels}
        features = {"photo": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c", "never"])}
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(folder / "data.parquet")
    return folder / "data.parquet"


@pytest.mark.parametrize(("kind", "classes"), [("folder", 3), ("array", 3), ("list", 3), ("image", 4)])
def test_images_of_every_kind_train_a_classifier(tmp_path, kind, classes):
    location = str(_write_images(tmp_path, kind))
    vit = Vit()
    data = vit.data("nano", "pretrain", location)
    assert data.classes == classes
    assert data.train.tensors["pixels"].shape[1:] == (3, 32, 32)
    parts = [len(part) for part in (data.train, data.validation, data.test)]
    assert parts == ([43, 5, 12] if kind == "folder" else [49, 5, 6])
    model = vit.model("nano", data)
    batch, _ = data.batch(0, 0, 4)
    assert vit.forward(model, batch).logits.shape == (4, classes)


def test_an_images_own_validation_split_is_taken_and_test_examples_never_are(tmp_path):
    """One colour a split: validation examples are the data's own, or else come from the training examples."""
    for name, value in (("train", 10), ("validation", 20), ("test", 30)):
        table = {"image": [np.full((4, 4), value + 100 * (i % 2), np.uint8).tolist() for i in range(20)]}
        table["label"] = [0, 1] * 10
        datasets.Dataset.from_dict(table).to_json(tmp_path / f"{name}.jsonl")
    colours = {part: _colours(Vit().data("nano", "pretrain", str(tmp_path)), part) for part in ("validation", "test")}
    assert colours == {"validation": {20, 120}, "test": {30, 130}}
    (tmp_path / "validation.jsonl").unlink()
    data = Vit().data("nano", "pretrain", str(tmp_path))
    assert _colours(data, "validation") <= {10, 110} and _colours(data, "test") == {30, 130}
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 20)


def _colours(data, part):
    return set(getattr(data, part).tensors["pixels"].unique().tolist())


def test_each_image_keeps_its_label(tmp_path):
    """An image of one colour per class, so that a wrong pairing of pixels and labels shows."""
    colours = [Image.new("RGB", (8, 8), (80 * label, 0, 0)) for label in (0, 1, 2) * 20]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    table = {"image": colours, "label": [0, 1, 2] * 20}
    datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / "d.parquet")
    data = Vit().data("nano", "pretrain", str(tmp_path / "d.parquet"))
    for part in (data.train, data.validation, data.test):
        assert (part.tensors["pixels"][:, 0].amax((1, 2)) == 80 * part.tensors["labels"]).all()


def test_unlabelled_test_examples_are_not_tested_on(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for name, labels in (("train", [0, 1] * 10), ("test", [-1] * 5)):
        table = {"image": _pictures(len(labels)), "label": labels}
        datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / f"{name}.parquet")
    data = Vit().data("nano", "pretrain", str(tmp_path))
    assert data.classes == 2
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 2, 2)
    assert len(Mae().data("nano", "pretrain", str(tmp_path)).test) == 5, "which needs no labels"


def test_a_large_data_set_is_thinned_evenly(tmp_path, monkeypatch):
    monkeypatch.setitem(images._TRAIN_LIMIT, "nano", 30)
    location = _write_images(tmp_path, "image")
    data = Vit().data("nano", "pretrain", str(location))
    assert "30 of 60" in data.name
    assert len(data.train) + len(data.validation) + len(data.test) == 30
    assert set(data.train.tensors["labels"].tolist()) == {0, 1, 2}


def test_adapting_to_user_data_fits_the_checkpoint_of_the_embedded_source(tmp_path, monkeypatch):
    location = str(_write_images(tmp_path, "image"))
    vit = Vit()
    before, after = (vit.data("nano", split, location) for split in ("source", "adapt"))
    assert before.name.startswith("scikit-learn digits")
    assert len(after.train) + len(after.validation) + len(after.test) == 60
    for baseline in (vit, Mae()):
        states = [baseline.model("nano", data).state_dict() for data in (before, after)]
        assert [each.shape for each in states[0].values()] == [each.shape for each in states[1].values()]
    assert before.classes == after.classes == 10
    gpt, location = Gpt(), str(_write_text(tmp_path, "jsonl"))
    before, after = (gpt.data("nano", split, location) for split in ("source", "adapt"))
    assert before.sha256 == gpt.data("nano", "source").sha256 != after.sha256
    assert after.sha256 == gpt.data("nano", "pretrain", location).sha256, "the same letters"
    assert after.name == "data.jsonl, letters only"

    for table, value in ((text.VOCABULARY, 512), (text._LIMIT, 1 << 16), (LENGTH, 64)):
        monkeypatch.setitem(table, "base", value)
    before, after = (gpt.data("base", split, location) for split in ("source", "adapt"))
    assert before.sha256 == gpt.data("base", "source").sha256 != after.sha256
    # The same words under its own tokenizer are fewer tokens: the adapted data must use the source's.
    assert len(after.train) > len(gpt.data("base", "pretrain", location).train)


def test_user_data_is_read_once(tmp_path, monkeypatch):
    location = str(_write_text(tmp_path, "csv"))
    first = Bert().data("nano", "pretrain", location)
    monkeypatch.setattr(source, "_load", None)
    assert Bert().data("nano", "pretrain", location).sha256 == first.sha256


def test_unusable_data_is_refused_with_a_reason(tmp_path):
    cases = {
        "missing.parquet": (FileNotFoundError, "no such file or folder"),
        "empty": (FileNotFoundError, "no Parquet"),
        "notes.docx": (ValueError, "cannot read a .docx"),
        "script.py": (ValueError, "scripts are refused"),
        "scripted": (ValueError, "scripts are refused"),
        "numbers.csv": (ValueError, r"no text \(string\) column among a \(label\)"),
        "torn.parquet": (ValueError, "cannot read this as parquet"),
        "blank.jsonl": (ValueError, "usable example"),
        "short.txt": (ValueError, "too little text"),
    }
    for folder in ("empty", "scripted"):
        (tmp_path / folder).mkdir()
    for name, content in {
        "notes.docx": "x",
        "script.py": "raise SystemExit",
        "scripted/scripted.py": "raise SystemExit",
        "numbers.csv": "a\n1\n2\n",
        "torn.parquet": "PAR1 torn",
        "blank.jsonl": '{"text": ""}\n{"text": " "}\n',
        "short.txt": "one\ntwo\nthree\n",
    }.items():
        (tmp_path / name).write_text(content)
    for name, (kind, message) in cases.items():
        with pytest.raises(kind, match=message):
            Gpt().data("nano", "pretrain", str(tmp_path / name))
    with pytest.raises(ValueError, match="no image column"):
        Vit().data("nano", "pretrain", str(tmp_path / "numbers.csv"))
    with pytest.raises(ValueError, match="owner/name: cannot read this as hub data"):
        Gpt().data("nano", "pretrain", "owner/name")
