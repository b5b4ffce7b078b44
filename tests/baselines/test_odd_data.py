"""Odd tables in a user's data: each is read as it was meant, or refused in one sentence that says where."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from baselines import classes, instructions, source
from baselines.bert_tasks import BertClassifier, is_labelled
from baselines.labelled_text import splits_of
from baselines.tokens import tokens_of

datasets = pytest.importorskip("datasets")

SEVERAL = [f"text {number}" for number in range(6)]


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def in_lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def jsonl(texts: Sequence[Any]) -> str:
    return in_lines([{"text": text} for text in texts])


def csv(*rows: str) -> str:
    return "\n".join(rows) + "\n"


# texts ----------------------------------------------------------------------------------------------------------------

ODD = ["one\u2028two", "three\u0085four", "five\x0bsix\x0c", "seven\x1ceight\x1d\x1e", "nine\u2029ten", "na\u00efve"]
TEXTS: dict[str, tuple[str, str | bytes, list[str]]] = {
    "lines": ("a.txt", "\n".join(ODD), ODD),
    "lines of windows": ("a.txt", "\r\n".join(ODD), ODD),
    "lines of old macs": ("a.txt", "\r".join(ODD), ODD),
    "a mark": ("a.txt", b"\xef\xbb\xbf" + "\n".join(ODD).encode(), ODD),
    "utf-16": ("a.txt", "\n".join(ODD).encode("utf-16"), ODD),
    "utf-16, the other way": ("a.txt", b"\xfe\xff" + "\n".join(ODD).encode("utf-16-be"), ODD),
    "blank lines": ("a.txt", "\n\n" + "\n\n \n".join(SEVERAL), SEVERAL),
    "a table with a mark": ("a.csv", b"\xef\xbb\xbf" + csv("text", *SEVERAL).encode(), SEVERAL),
    "a table in utf-16": ("a.csv", csv("text", *SEVERAL).encode("utf-16"), SEVERAL),
    "words for nothing": ("a.csv", csv("text", "NA", "null", "None", "nan"), ["NA", "null", "None", "nan"]),
    "two lines in a cell": ("a.csv", csv("text", '"a\nb"', "b", '"c,d"', '"e""f"'), ["a\nb", "b", "c,d", 'e"f']),
    "separators in cells": ("a.csv", csv("text", *ODD[:2], ODD[4]), [*ODD[:2], ODD[4]]),
    "numbers before texts": ("a.csv", csv("id,comment", *(f"{i},{t}" for i, t in enumerate(SEVERAL))), SEVERAL),
    "numbers with a hole": ("a.csv", csv("id,comment", "1,a", ",b", "3,c", "4,d"), ["a", "b", "c", "d"]),
    "texts of digits": ("a.csv", csv("text,id", "12,1", "007,2", "3,3"), ["12", "007", "3"]),
    "a table of windows": ("a.csv", "text\r\n" + "\r\n".join(SEVERAL) + "\r\n", SEVERAL),
    "empty cells": ("a.csv", csv("text,n", "a,1", ",2", "b,3", "c,4"), ["a", "b", "c"]),
    "a head with many rows": ("a.csv", csv("text", *(f"t{i}" for i in range(300))), [f"t{i}" for i in range(300)]),
    "lines of json": ("a.jsonl", jsonl(ODD), ODD),
    "json with a mark": ("a.json", b"\xef\xbb\xbf" + json.dumps([{"text": each} for each in ODD]).encode(), ODD),
    "lines of json with a mark": ("a.jsonl", b"\xef\xbb\xbf" + jsonl(ODD).encode(), ODD),
    "json in utf-16": ("a.jsonl", jsonl(ODD).encode("utf-16"), ODD),
    "missing texts": ("a.jsonl", jsonl(["a", None, "b", "", "c", " "]), ["a", "b", "c"]),
    "none as a word": ("a.jsonl", jsonl(["None", "null", "nan"]), ["None", "null", "nan"]),
    "a number beside": ("a.jsonl", in_lines([{"n": 1, "text": each} for each in SEVERAL]), SEVERAL),
}
NO_TEXTS: dict[str, tuple[str, str | bytes, str]] = {
    "another encoding": ("a.txt", "eins\nzw\u00f6lf\n".encode("latin-1"), "line 2 of a.txt is no UTF-8: save the file"),
    "a table in another": ("a.csv", "text\na\n\u00fc\n".encode("latin-1"), "line 3 of a.csv is no UTF-8"),
    "json in another": ("a.jsonl", b'{"text": "a"}\n{"text": "\xfc"}\n', "line 2 of a.jsonl is no UTF-8"),
    "nothing": ("a.txt", "", "the data is empty"),
    "blank": ("a.txt", "\n \n\t\n", "at least 2"),
    "one line": ("a.txt", "all alone", "at least 2"),
    "a head alone": ("a.csv", "text\n", "the data is empty"),
    "no table": ("a.csv", "", "the data is empty"),
    "a long row": ("a.csv", csv("text,n", "a,1", "b,2,3"), "row 2 of a.csv has 3 cells, and its head 2"),
    "a short row": ("a.csv", csv("text,n", "a,1", "b,2", "c"), "row 3 of a.csv has 1 cells, and its head 2"),
    "semicolons": ("a.csv", csv("text;label", "a;1", "b;2"), "separated by ';': separate them by commas"),
    "tabs": ("a.csv", csv("text\tlabel", "a\t1"), "separate them by commas"),
    "an open quote": ("a.csv", csv("text", "a", '"b', "c"), "a.csv is no CSV"),
    "a column twice": ("a.csv", csv("text,text", "a,b"), "names a column twice"),
    "numbers alone": ("a.csv", csv("n,m", "1,2", "3,4"), r"no text \(string\) column among n \(label\), m \(label\)"),
    "a broken line": ("a.jsonl", '{"text": "a"}\n{"text": \n', "cannot read this as json"),
    "a list of numbers": ("a.json", "[1, 2, 3]", "cannot read this as json|no text"),
    "a number": ("a.json", "3", "cannot read this as json|no text"),
    "deep": ("a.json", "[" * 100_000 + "]" * 100_000, "cannot read this as json"),
    "no json": ("a.json", "", "the data is empty"),
    "texts and numbers": ("a.jsonl", jsonl(["a", 1, {"b": 2}]), r"no text \(string\) column"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_those_that_stand_there(name: str, tmp_path: Path) -> None:
    file, content, expected = TEXTS[name]
    found = source.texts(written(tmp_path, file, content), 1 << 20)
    assert sorted(found.train + found.validation + found.test) == sorted(expected)


@pytest.mark.parametrize("name", NO_TEXTS)
def test_no_texts_are_refused(name: str, tmp_path: Path) -> None:
    file, content, message = NO_TEXTS[name]
    location = written(tmp_path, file, content)
    with pytest.raises(ValueError, match=message) as refused:
        source.texts(location, 1 << 20)
    assert str(refused.value).startswith(f"{location}: ") and "\n" not in str(refused.value)


# classes --------------------------------------------------------------------------------------------------------------


def rows(labels: Sequence[Any], **texts: Any) -> str:
    return in_lines([{"text": f"text {number}", "label": label} | texts for number, label in enumerate(labels)])


def cells(*labels: str) -> str:
    return csv("text,label", *(f"text {number},{label}" for number, label in enumerate(labels)))


CLASSES: dict[str, tuple[str, str, list[int]]] = {
    "integers": ("a.jsonl", rows([0, 1, 0, 1]), [0, 1, 0, 1]),
    "names": ("a.jsonl", rows(["pos", "neg", "pos", "neg"]), [1, 0, 1, 0]),
    "names in a table": ("a.csv", cells("pos", "neg", "pos", "neg"), [1, 0, 1, 0]),
    "integers in a table": ("a.csv", cells("1", "0", "1", "0"), [1, 0, 1, 0]),
    "one missing": ("a.jsonl", rows([0, 1, None, 1]), [0, 1, -1, 1]),
    "one missing in a table": ("a.csv", cells("0", "1", "", "1"), [0, 1, -1, 1]),
    "a name missing": ("a.csv", cells("no", "yes", "", "yes"), [0, 1, -1, 1]),
    "integers as texts": ("a.jsonl", rows(["0", "1", "10", "1", "10", "0"]), [0, 1, 2, 1, 2, 0]),
    "whole numbers": ("a.jsonl", rows([0.0, 1.0, 0.0, 1.0]), [0, 1, 0, 1]),
    "whole numbers in a table": ("a.csv", cells("0.0", "1.0", "", "1.0"), [0, 1, -1, 1]),
    "true and false": ("a.jsonl", rows([True, False, True, None]), [1, 0, 1, -1]),
    "from 1 on": ("a.jsonl", rows([1, 2, 1, 2]), [0, 1, 0, 1]),
    "far apart": ("a.jsonl", rows([0, 1_000_000, 0, 1_000_000]), [0, 1, 0, 1]),
    "beside an id": ("a.jsonl", rows([0, 1, 0, 1], id=7), [0, 1, 0, 1]),
}
NO_CLASSES: dict[str, tuple[str, str, str]] = {
    "between integers": ("a.jsonl", rows([0.0, 0.5, 1.0, 0.0]), "row 2 of train has label 0.5, which is no class"),
    "between in a table": ("a.csv", cells("0", "1", "0.25", "0"), "row 3 of train has label 0.25"),
    "less than nothing": ("a.jsonl", rows([0, 1, -5, 1]), "row 3 of train has label -5: count classes from 0"),
    "minus one and one": ("a.jsonl", rows([-1, 1, -1, 1]), "row 1 of train has label -1 beside others"),
    "ids": ("a.jsonl", rows(list(range(100, 120))), "has 20 different values in 20 rows"),
    "descriptions": ("a.jsonl", rows([f"about {n}" for n in range(20)]), "has 20 different values in 20 rows"),
    "names and numbers": ("a.csv", cells("yes", "1", "no", "0", "yes", "no", "1"), "holds both texts and numbers"),
    "one class": ("a.jsonl", rows([1, 1, 1, 1]), "is one class"),
    "none": ("a.csv", cells("", "", "a", ""), "usable example|one class"),
    "no text": ("a.jsonl", rows([0, 1, 0]) + in_lines([{"text": None, "label": 1}]), "row 4 of train has a label"),
    "a blank text": ("a.csv", cells("0", "1", "0") + " ,1\n", "row 4 of train has a label and no text"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_those_that_stand_there(name: str, tmp_path: Path) -> None:
    file, content, expected = CLASSES[name]
    location = written(tmp_path, file, content)
    assert is_labelled(location)
    with tempfile.TemporaryDirectory() as scratch:
        splits = splits_of(location, scratch)
        label = classes.column(splits["train"])
        assert label == "label" and source._column(location, splits["train"], "text") == "text"
        known = classes.read(location, splits, label)
    assert known.labels["train"].tolist() == expected and known.number == max(expected) + 1


@pytest.mark.parametrize("name", NO_CLASSES)
def test_no_classes_are_refused(name: str, tmp_path: Path) -> None:
    file, content, message = NO_CLASSES[name]
    location = written(tmp_path, file, content)
    assert is_labelled(location)
    with pytest.raises(ValueError, match=message) as refused:
        BertClassifier(tokens_of("pico", None)).data("pico", "adapt", location)
    assert str(refused.value).startswith(f"{location}: ") and "\n" not in str(refused.value)


# instructions ---------------------------------------------------------------------------------------------------------

ENTRY = {"instruction": "say\u2028it", "input": "", "output": "NA"}


def entries(location: str) -> list[Mapping[str, Any]]:
    assert instructions.is_instructions(location)
    parts = instructions._parts(location)
    for part in parts.values():
        for entry in part:
            instructions._text(location, entry)
    return [entry.content for part in parts.values() for entry in part]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.jsonl", in_lines([ENTRY] * 3)),
        ("a.json", b"\xef\xbb\xbf" + json.dumps([ENTRY] * 3).encode()),
        ("a.json", json.dumps([ENTRY] * 3).encode("utf-16")),
        ("a.csv", csv("instruction,input,output", *["say\u2028it,,NA"] * 3)),
    ],
)
def test_instructions_are_those_that_stand_there(file: str, content: str | bytes, tmp_path: Path) -> None:
    assert entries(written(tmp_path, file, content)) == [ENTRY] * 3


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.jsonl", in_lines([ENTRY, ENTRY | {"output": None}]), "line 2 has no field 'output'"),
        ("a.jsonl", in_lines([ENTRY, ENTRY | {"input": 3}]), "line 2 has no text in its field 'input'"),
        ("a.json", json.dumps([ENTRY, {"instruction": "a"}]), "entry 2 has no field 'input'"),
        ("a.csv", csv("instruction,input,output", "a,,b", ",,c"), "entry 2 has an empty field 'instruction'"),
        ("a.jsonl", in_lines([ENTRY]).encode() + b'{"instruction": "\xfc"}\n', "line 2 of a.jsonl is no UTF-8"),
        ("a.csv", csv("instruction,input,output", "a,,b", "a,b"), "row 2 of a.csv has 2 cells"),
    ],
)
def test_no_instructions_are_refused(file: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    location = written(tmp_path, file, content)
    with pytest.raises(ValueError, match=message):
        entries(location)


# pictures -------------------------------------------------------------------------------------------------------------


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file, "png")
    return file.getvalue()


def album(folder: Path, **columns: Sequence[Any]) -> str:
    count = len(next(iter(columns.values())))
    images = [{"bytes": picture(seed), "path": None} for seed in range(count)]
    path = folder / "a.parquet"
    datasets.Dataset.from_dict({"image": images, **columns}).to_parquet(path)
    return str(path)


def labels_of(location: str) -> tuple[list[int], int]:
    limits = {"train": 100, "validation": 100, "test": 100}
    found = source.pictures(location, 8, limits, labelled=True)
    assert len(list(found.pixels)) == len(found.labels)
    return sorted(found.labels.tolist()), found.classes


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"label": ["dog", "cat"] * 4}, ([0] * 4 + [1] * 4, 2)),
        ({"label": [3, 5, None, 3, 5, 3, 5, 3]}, ([0] * 4 + [1] * 3, 2)),
        ({"id": list(range(8)), "label": [0, 1] * 4}, ([0] * 4 + [1] * 4, 2)),
        ({"digit": [0, 1] * 4}, ([0] * 4 + [1] * 4, 2)),
        ({"label": [0.0, 1.0] * 4}, ([0] * 4 + [1] * 4, 2)),
        ({"label": [True, False] * 4}, ([0] * 4 + [1] * 4, 2)),
    ],
)
def test_a_pictures_class_is_the_one_that_stands_there(columns: Any, expected: Any, tmp_path: Path) -> None:
    assert labels_of(album(tmp_path, **columns)) == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": list(range(8))}, "column 'id' has 8 different values in 8 rows"),
        ({"label": [0.5, 1.0] * 4}, "row 1 of train has label 0.5"),
        ({"label": [0, -7] * 4}, "row 2 of train has label -7"),
        ({"caption": ["a dog"] * 8}, "no label"),
        ({"id": list(range(8)), "year": [1999] * 8}, "more than one label"),
    ],
)
def test_no_classes_of_pictures_are_refused(columns: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        labels_of(album(tmp_path, **columns))


def test_a_picture_that_is_none_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    images = [{"bytes": picture(seed) if seed != 2 else b"no picture", "path": None} for seed in range(8)]
    datasets.Dataset.from_dict({"image": images, "label": [0, 1] * 4}).to_parquet(path)
    with pytest.raises(ValueError, match=r"cannot decode the image of example \d"):
        labels_of(str(path))
