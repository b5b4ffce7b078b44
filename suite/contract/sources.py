"""The code that evidence depends on, as hashes: of the harness, of each baseline and of each technique."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from suite.contract.baseline import baseline_hashes
from suite.contract.catalogue import catalogue, lookup, package_folder
from suite.record.code import hash_files
from suite.record.job import techniques_of

MEASURING = (
    "contract/baseline", "contract/data", "contract/pretrained", "contract/recipe", "contract/run", "contract/stack",
    "contract/technique", "measure/comparison", "measure/contender", "measure/worker", "model/*", "kernels/*",
    "meters/*",
)  # fmt: skip


def harness_sha256() -> str:
    """Hash of the harness code that a measurement depends on: records of another hash are stale."""
    folder = package_folder("suite")
    return hash_files(path for name in MEASURING for path in folder.glob(f"{name}.py"))


def sources_of(stack: str) -> dict[str, str]:
    """Technique id -> hash of its code, for every technique of the stack. Raises UnknownId."""
    entries = catalogue()
    return {name: lookup("technique", name, entries).source_sha256 for name in techniques_of(stack)}


@dataclass(frozen=True)
class Sources:
    """Hashes of code: of the harness, and of baselines and techniques by id."""

    harness_sha256: str
    baselines: Mapping[str, str]
    techniques: Mapping[str, str]

    def changes(self, older: Sources) -> tuple[str, ...]:
        """Phrases that say what differs here from ``older``; empty where nothing does."""
        changed = ["the harness changed"] if older.harness_sha256 != self.harness_sha256 else []
        for kind, then, now in (
            ("the baseline ", older.baselines, self.baselines),
            ("", older.techniques, self.techniques),
        ):
            changed += [
                f"{kind}{name} {'changed' if name in now else 'is not installed'}"
                for name, sha256 in then.items()
                if sha256 != now.get(name)
            ]
        return tuple(changed)


def current_sources() -> Sources:
    """The installed code."""
    techniques = {name: entry.source_sha256 for name, entry in catalogue().items()}
    return Sources(harness_sha256(), baseline_hashes(), techniques)
