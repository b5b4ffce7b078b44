"""The studies and attacks that run on request, which no other test imports: they still fit what they use."""

import importlib
from pathlib import Path

import pytest

from tests.torture import Row, table

HERE = Path(__file__).parent
MODULES = sorted(
    ".".join((HERE.name, *path.relative_to(HERE).with_suffix("").parts))
    for folder in ("numbers", "torture")
    for path in HERE.glob(f"{folder}/*.py")
    if path.stem != "__init__"
)


@pytest.mark.parametrize("module", MODULES)
def test_it_imports(module):
    assert importlib.import_module(module).__doc__


def test_the_table_of_attacks_is_that_of_the_rows_that_were_kept():
    assert table.PAGE.read_text("utf-8") == table.drawn(table.read())


def test_an_attack_takes_the_place_of_its_earlier_rows_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "revision", lambda: "abc")
    path, page = tmp_path / "made.json", tmp_path / "README.md"
    for attack, rows, share in (
        ("kills", [Row("old", 1, "1 lost", held=False)], 0.01),
        ("disks", [Row("full", 20, "20 held", held=True)], 1.0),
        ("kills", [Row("new | one", 50, "50 held", held=True), Row("other", 1, "1 held", held=True)], 0.5),
    ):
        table.keep(attack, rows, share, 1.25, path, page)
    known = table.read(path)
    assert [(each.attack, each.share, [row.test for row in each.rows]) for each in known.made] == [
        ("disks", 1.0, ["full"]),
        ("kills", 0.5, ["new | one", "other"]),
    ]
    text = page.read_text()
    assert "1 lost" not in text and "new \\| one | 50 | 0.5 | 50 held |" in text and "| 1.2 | abc |" in text
    assert "In part: kills. Not yet: appends," in text
