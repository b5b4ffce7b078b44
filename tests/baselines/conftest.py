"""One cache for the whole test run, empty at its start, so that no test reads what an earlier version prepared."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEANTRAIN_CACHE", str(folder))
        yield folder
