"""Two real gloo ranks over loopback, run once for all tests of this folder."""

from pathlib import Path
from typing import Any

import pytest

from tests.real_ranks import two_of


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What ``ranks.py`` wrote, by rank."""
    return two_of(Path(__file__).with_name("ranks.py"), tmp_path_factory.mktemp("ranks"))
