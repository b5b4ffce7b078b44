"""What a run needs before it begins: a fork server that has not touched CUDA, and metadata without an installation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from suite.record.uninstalled import ROOT, write_metadata

ASKED = """
import json, sys, torch
asked = []
def noting(owner, name):
    own = getattr(owner, name)
    def asks(*args, **kwargs):
        asked.append(name)
        return own(*args, **kwargs)
    setattr(owner, name, asks)
for owner, names in (
    (torch.cuda, ("is_available", "device_count", "_lazy_init", "current_device")),
    (torch._C, ("_cuda_getDeviceCount", "_cuda_init")),
):
    for name in names:
        if hasattr(owner, name):
            noting(owner, name)
import suite.measure.contenders.contender, suite.measure.contenders.worker
eager = [name for name in ("datasets", "wandb", "bitsandbytes", "peft", "zeus", "pyarrow") if name in sys.modules]
print(json.dumps([asked, eager]))
"""


def said(code: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=kept | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_what_the_fork_server_loads_asks_cuda_nothing_and_needs_no_extra() -> None:
    """A process that has asked the driver cannot fork children that use a GPU; a borrowed machine has torch alone."""
    assert json.loads(said(ASKED)) == [[], []]


def test_a_checkout_that_is_not_installed_finds_its_techniques(tmp_path: Path) -> None:
    """Without the environment's own metadata of an installation."""
    write_metadata(tmp_path)
    code = (
        "from importlib.metadata import entry_points, PathDistribution, version\n"
        "import importlib.metadata as m, json, sys\n"
        "from pathlib import Path\n"
        f"d = PathDistribution(next(Path({str(tmp_path)!r}).glob('*.dist-info')))\n"
        "print(json.dumps([d.version, sorted({(e.group, e.name) for e in d.entry_points}), "
        "[e.load().__name__ for e in d.entry_points if e.group == 'leantrain.baselines' and e.name == 'gpt']]))"
    )
    known, points, loaded = json.loads(said(code))
    assert loaded == ["Gpt"] and known
    assert ["leantrain.techniques", "catalogue"] in points and ["console_scripts", "leantrain"] in points
    assert {name for group, name in points if group == "leantrain.baselines"} == {"bert", "gpt", "vit", "mae"}
