"""The studies and attacks that run on request, which no other test imports: they still fit what they use."""

import importlib
from pathlib import Path

import pytest

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
