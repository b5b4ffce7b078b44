"""What a user installs works without the checkout: a wheel has all it needs, and a technique of one's own plugs in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from suite.entries.sources import code_of
from suite.record.job import Setting

ROOT = Path(__file__).parents[1]
PACKAGES = ("leantrain", "suite", "baselines", "techniques")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
USED = """
import importlib.metadata, json
from pathlib import Path
import leantrain
from leantrain import suite, techniques, baselines
here = Path(leantrain.__file__).parents[1]
assert all(here in Path(each.__file__).parents for each in (suite, techniques, baselines))
(found,) = importlib.metadata.distributions(name="leantrain", path=[str(here)])
assert {point.group for point in found.entry_points} == {
    "console_scripts", "leantrain.baselines", "leantrain.techniques"
}
from leantrain.suite.entries.catalogue import catalogue
from leantrain.suite.entries.sources import code_of
from leantrain.suite.record.job import Setting
entries = catalogue()
assert all(here in entry.folder.parents for entry in entries.values())
assert entries["lion"].card.claim
counted = leantrain.count("lion", baseline="gpt", size="pico")
code = {stack: code_of(Setting(baseline="gpt", size="pico"), stack).model_dump() for stack in %r}
state = counted.to_frame().ratio["optimizer_state_bytes"]
print(json.dumps({"techniques": sorted(entries), "code": code, "state": state}))
"""
LOADED = """
import importlib, pkgutil, sys
import leantrain
for module in pkgutil.walk_packages(leantrain.__path__, "leantrain."):
    if not module.name.startswith("leantrain.techniques.") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from leantrain.suite.cli import app
from leantrain.suite.entries.catalogue import catalogue
from leantrain.suite.topics.by_others.by_others_on_page import section
from leantrain.suite.topics.modelled_time.devices import devices
from leantrain.suite.topics.modelled_time.modelled import believed
from typer.testing import CliRunner
assert not {"research", "suite", "techniques", "baselines"} & {name.split(".")[0] for name in sys.modules}
assert believed().bands and devices() and section(catalogue()["lora"].card)
for command in app.registered_commands:
    name = command.name or command.callback.__name__.strip("_")
    assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0, name
"""
STACKS = ("baseline", "lion", "flashattention", "int8_mixed", "zero3_fsdp", "ckpt_chen_sqrt+lora", "powersgd")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def ran(command: Sequence[object], cwd: Path) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy of what git tracks."""
    tree, built = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PACKAGES, "distribution", "research", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else []
    if not names:
        pytest.skip("this is no git checkout, so nothing says which files are the project's")
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    ran([*PIP, "wheel", ".", *OFFLINE, "-w", built], tree)
    (one,) = built.glob("leantrain-*.whl")
    return one


def test_the_wheel_has_every_file_of_its_packages_and_no_other(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = [name for name in listed.stdout.splitlines() if not name.endswith("/golden.txt")]  # tests' own
    assert held == {name if name.startswith("leantrain/") else f"leantrain/{name}" for name in ours}


@dataclass(frozen=True)
class Installed:
    """leantrain as its users have it: a virtual environment with the wheel, and a folder to work in."""

    python: Path
    work: Path

    def leantrain(self, *arguments: object) -> str:
        return ran([self.python, "-m", "leantrain", *arguments], self.work)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    root, work = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("work")
    python, packages = root / "venv" / "bin" / "python", root / "packages"
    ran([sys.executable, "-m", "venv", "--without-pip", root / "venv"], root)
    ran([*PIP, "install", *OFFLINE, "--no-compile", "--target", packages, wheel], root)
    site = Path(ran([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], root).strip())
    libraries = sysconfig.get_path("purelib")  # those that the tests run with
    (site / "libraries.pth").write_text(f"{packages}\n{libraries}\n")
    assert ran([python, "-c", "import leantrain; print(leantrain.__file__)"], work).startswith(str(packages))
    return Installed(python, work)


def test_the_installed_package_works_from_anywhere(installed: Installed) -> None:
    said = json.loads(ran([installed.python, "-c", USED % (STACKS,)], installed.work))
    assert "lion" in said["techniques"] and said["state"] == 0.5
    here = {stack: code_of(Setting(baseline="gpt", size="pico"), stack).model_dump() for stack in STACKS}
    assert said["code"] == here  # what a checkout measured, the wheel knows as its own
    assert ran([installed.python, "-m", "leantrain", "list", "lion"], installed.work).startswith("Lion")


def test_every_module_and_command_loads_without_the_studies(installed: Installed) -> None:
    ran([installed.python, "-c", LOADED], installed.work)


def test_an_agent_is_answered_by_the_installed_package(installed: Installed) -> None:
    """As a client of the protocol starts it, from a folder that is no checkout."""
    mcp = pytest.importorskip("mcp", reason="the protocol's SDK is not installed: pip install 'leantrain[mcp]'")
    for name, scale in (("reference", 1.0), ("contender", 0.9)):
        lines = [f"{step},{scale * (2 + 1 / step)}" for step in range(1, 40)]
        (installed.work / f"{name}.csv").write_text("\n".join(["step,loss", *lines]))
    server = mcp.StdioServerParameters(
        command=str(installed.python), args=["-m", "leantrain", "mcp"], env=environment(), cwd=installed.work
    )

    async def conversation() -> tuple[Any, Any, Any]:
        async with mcp.Client(server) as client:
            offered = (await client.list_tools()).tools
            logs = {"reference": ["reference.csv"], "contender": ["contender.csv"]}
            return offered, await client.call_tool("list", {"what": "lion"}), await client.call_tool("judge", logs)

    offered, listed, judged = anyio.run(conversation)
    assert {tool.name for tool in offered} == {"list", "count", "recommend", "judge", "check"}
    assert (listed.is_error, judged.is_error) == (False, False)
    assert judged.structured_content["meaning"] == "inconclusive"  # one run a side


@pytest.fixture(scope="module")
def plugged_in(installed: Installed) -> Installed:
    """With a new technique in a package of its own, installed to be edited."""
    written = installed.leantrain("new", "my_idea", "--category", "thoughts")
    assert "pip install -e my_idea" in written
    assert (installed.work / "my_idea" / "pyproject.toml").is_file() and not (installed.work / "techniques").exists()
    ran([*PIP, "--python", installed.python, "install", *OFFLINE, "-e", installed.work / "my_idea"], installed.work)
    return installed


def test_a_new_technique_plugs_in_beside_an_installed_leantrain(plugged_in: Installed) -> None:
    listed = json.loads(plugged_in.leantrain("list", "my_idea", "--json"))
    assert (listed["category"], listed["hyper_parameters"]) == ("thoughts", {"factor": 0.1})
    assert listed["overrides"] == ["after_backward"]


@pytest.mark.slow
def test_its_own_test_passes_and_its_claim_holds(plugged_in: Installed) -> None:
    ran([plugged_in.python, "-m", "pytest", "-p", "no:cacheprovider", "my_idea/tests"], plugged_in.work)
    claim = ("my_idea.scaled_gradients", "--exact", "-b", "gpt", "--size", "pico", "--json")
    assert [each["outcome"] for each in json.loads(plugged_in.leantrain("claims", *claim))] == ["holds"]


def test_what_cannot_be_renamed_is_refused() -> None:
    """A wheel is what a checkout is, or is not built."""
    sys.path.insert(0, str(ROOT / "distribution"))
    try:
        from backend import under_one_name
    finally:
        sys.path.pop(0)
    modules = frozenset(["suite.record", "suite.loop"])
    said = 'from suite.loop import run  # suite.loop, suite.other\nx = f"python -m suite.record.seal {suite.loop}"\n'
    renamed = under_one_name(said, modules, "suite/here.py")
    assert renamed.splitlines()[0] == "from leantrain.suite.loop import run  # leantrain.suite.loop, suite.other"
    assert "python -m leantrain.suite.record.seal" in renamed
    with pytest.raises(ValueError, match="imports suite by a bare name"):
        under_one_name("import suite.loop\nprint(suite.loop)\n", modules, "suite/here.py")
