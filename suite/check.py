"""``leantrain check``: the working tree against a stored reference, or another revision checked out beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.catalogue import lookup
from suite.comparison import Progress
from suite.machine import fingerprint
from suite.regression import Count, Finding, Item, Reference, Setting, compare, count, here, items_of, load, reference
from suite.revision import RevisionError, Side, checked_out


@dataclass(frozen=True)
class Selection:
    """What is checked; empty means all."""

    stacks: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ("modern",)

    def items(self, offer: dict[str, Any]) -> list[Item]:
        return items_of(offer, self.stacks, self.on, self.recipes)

    def has(self, item: Item) -> bool:
        return (
            (not self.stacks or item.stack in ("baseline", *self.stacks))
            and (not self.on or item.baseline in self.on)
            and item.recipe in self.recipes
        )

    def must_exist(self, *offers: dict[str, Any]) -> None:
        """Raises UnknownId for a name that no tree has."""
        techniques = {name: True for offer in offers for name in offer["techniques"]}
        baselines = {name: True for offer in offers for name in offer["baselines"]}
        for stack in self.stacks:
            for part in stack.split("+"):
                lookup("technique", part.partition(":")[0], techniques)
        for name in self.on:
            lookup("baseline", name, baselines)


def counted(selection: Selection, setting: Setting, progress: Progress) -> Reference:
    """The selected items' exact numbers, with the code that this process has."""
    offer = here("hello")
    selection.must_exist(offer)
    return _reference(setting, _counts(selection.items(offer), setting, here, progress))


def against_file(path: Path, selection: Selection, setting: Setting, progress: Progress) -> list[Finding]:
    """Findings of the exact tier. Raises BadReference."""
    stored = load(path)  # before minutes are spent
    kept = stored.model_copy(update={"counts": [each for each in stored.counts if selection.has(each.item)]})
    return compare(kept, counted(selection, setting, progress))


def against_revision(
    revision: str, top: Path, selection: Selection, setting: Setting, progress: Progress
) -> list[Finding]:
    """Findings of the working tree at ``top`` against ``revision``; both sides count at the same time."""
    with ExitStack() as stack:
        tree = stack.enter_context(checked_out(revision, top))
        old, new = stack.enter_context(Side(tree)), stack.enter_context(Side(top))
        with ThreadPoolExecutor(2) as pool:
            offers = list(pool.map(lambda side: side.ask("hello"), (old, new)))
            for side, offer in zip((old, new), offers, strict=True):
                _must_come_from(side.tree, offer)
            selection.must_exist(*offers)
            jobs = [(selection.items(offer), side) for side, offer in zip((old, new), offers, strict=True)]
            silent: Progress = lambda share, what: None  # noqa: E731
            before, after = pool.map(
                lambda job: _counts(job[0], setting, job[1].ask, progress if job[1] is new else silent), jobs
            )
        return compare(_reference(setting, before), _reference(setting, after))


def _must_come_from(tree: Path, offer: dict[str, Any]) -> None:
    """Raises RevisionError where no code of the tree would run: both sides would be the same installed code."""
    folders = [offer["suite"], *(each["folder"] for each in offer["techniques"].values())]
    if not any(Path(folder).resolve().is_relative_to(tree.resolve()) for folder in folders):
        raise RevisionError(
            f"nothing that {tree.name} holds is loaded from it: neither leantrain nor a package of its entry-point "
            f"group leantrain.techniques lies at its top or in src/"
        )


def _counts(items: Iterable[Item], setting: Setting, ask: Callable[..., Any], progress: Progress) -> list[Count]:
    todo = list(items)
    done = []
    for number, item in enumerate(todo):
        progress(number / len(todo), f"counting {item}")
        done.append(count(item, setting, ask))
    return done


def _reference(setting: Setting, counts: list[Count]) -> Reference:
    return reference(fingerprint(setting.device, setting.threads), setting, counts)
