"""Makes mutants: a technique broken on purpose, in one place at a time. An exact claim of its card must notice.

A claim that holds of a broken technique proves nothing about the whole one. Two kinds are tried. Each method that a
technique overrides is taken away, so that the base's stands there. And ``mutants.toml`` beside the card has edits of
the source, such as a careless implementer would make (a wrong sign, a forgotten restore, a mask that is not applied):

    [[mutant]]
    name = "no sign"
    old = "torch.lerp(moved, gradient, 1 - beta1).sign_()"
    new = "torch.lerp(moved, gradient, 1 - beta1)"
    module = "techniques.shared.sgd"        # where it is not the technique's own
    settings = "momentum=0.5"               # where the defaults do not use what it breaks

Each runs in a process of its own, where the module is loaded from the edited source; no file changes. They are tried
at pico; where its two blocks are too few (copies in a wrong order), the file begins with ``size = "nano"``.
"""

from __future__ import annotations

import gc
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from queue import Queue
from types import CodeType, ModuleType
from typing import Any, cast

import torch

from suite.entries.catalogue import Entry, catalogue
from suite.judge.verdicts import FAILS
from suite.loop.technique import CHAINED, SLOTS, Technique, overrides
from suite.measure.contenders import contender, fork_servers
from suite.measure.contenders.deputies import deputy, in_child
from suite.measure.exact import exact_verdicts, know_reference
from suite.measure.provenance import Progress, silent
from suite.process.child import ContenderFailed
from suite.process.groups import Deputy
from suite.process.replies import first_line
from suite.process.servers import ThisProcess
from suite.record.job import Job, Setting, Size

SIZE: Size = "pico"  # an exact claim holds at any
FILE = "mutants.toml"
LIMIT_S = 900.0  # of one try
ENTRY_S = 4 * 3600.0  # of all tries of an entry
HARNESS = __name__.removesuffix("measure.mutants")
INSTRUMENTS = ("sites", "records", "probes")  # these measure a technique, and are no part of it


@dataclass(frozen=True)
class Mutant:
    """Describes a broken technique: without the method ``lacks``, or with ``old`` replaced by ``new`` in ``module``'s
    source.

    One with neither is the technique as it is. ``settings``: hyper-parameters other than the defaults.
    """

    technique: str
    name: str
    lacks: str = ""
    module: str = ""
    old: str = ""
    new: str = ""
    settings: str = ""


@dataclass(frozen=True)
class Notice:
    """Says what noticed a mutant on the ``baseline`` that was tried last: ``claims`` that do not hold, or the ``error``
    it ended with. Else it survives."""

    mutant: Mutant
    claims: tuple[str, ...] = ()
    error: str = ""
    baseline: str = ""

    @property
    def survives(self) -> bool:
        return not (self.claims or self.error)

    @property
    def sentence(self) -> str:
        """Tells what noticed it, in words."""
        return self.error or ", ".join(self.claims) or "nothing: it survives"

    def as_dict(self) -> dict[str, Any]:
        """Makes JSON values of it."""
        return {
            "technique": self.mutant.technique,
            "mutant": self.mutant.name,
            "survives": self.survives,
            "claims": list(self.claims),
            "error": self.error,
        }


def mutants_of(entry: Entry) -> list[Mutant]:
    """Returns an entry's mutants, the automatic ones first; its file's table ``settings`` has the hyper-parameters with
    which a method is taken away that the defaults do not need.

    Raises ValueError for an edit that fits no place, or several, and for settings of a method that it has not.
    """
    methods = [name for name in (*CHAINED, *SLOTS) if name not in INSTRUMENTS and overrides(entry.technique, name)]
    file = _file(entry)
    settings, written = file.get("settings", {}), file.get("mutant", [])
    if unknown := settings.keys() - set(methods):
        raise ValueError(f"{entry.folder}: settings for {', '.join(sorted(unknown))}, which it does not override")
    automatic = [Mutant(entry.id, f"no {name}", lacks=name, settings=settings.get(name, "")) for name in methods]
    edits = [replace(Mutant(entry.id, "", module=entry.module), **table) for table in written]
    for edit in edits:
        if edit.module.startswith(HARNESS):
            raise ValueError(
                f"{entry.folder}: {edit.name}: {edit.module} is the harness, which judges mutants and is none: break "
                "what the technique itself or a module that techniques share does"
            )
        if (times := _source(edit.module).count(edit.old)) != 1:
            raise ValueError(
                f"{entry.folder}: {edit.name}: its old text is {times} times in {edit.module}, not once; mend it"
            )
    return [*automatic, *edits]


def _file(entry: Entry) -> dict[str, Any]:
    path = entry.folder / FILE
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


class Deputies:
    """Holds deputies in which :func:`noticed` tries mutants. They know a reference once it is counted, and stay
    whole."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._all = [deputy(ENTRY_S) for _ in range(number)]
        self._free: Queue[Deputy] = Queue()
        for one in self._all:
            self._free.put(one)

    def notices(self, entry: Entry, on: Sequence[str]) -> list[Notice]:
        """Returns what notices each mutant of an entry, asked of one that is free. Raises ValueError and
        ContenderFailed."""
        one = self._free.get()
        try:
            said = one(_said, entry.id, tuple(on), mendable=(ValueError,))
        finally:
            self._free.put(one)
        return [_heard(mutant, answer) for mutant, answer in zip(mutants_of(entry), said, strict=True)]

    def close(self) -> None:
        """Ends them."""
        for one in self._all:
            one.close()


@contextmanager
def processes(number: int) -> Iterator[Deputies]:
    """Has so many deputies, until the block ends."""
    deputies = Deputies(number)
    try:
        yield deputies
    finally:
        deputies.close()


def noticed(entries: Sequence[Entry], on: Sequence[str], by: Deputies, progress: Progress = silent) -> Iterator[Notice]:
    """Yields what notices each mutant of the entries on these baselines, entry by entry in the order in which they are
    ready.

    A mutant is tried on one baseline after the other until one notices it. Raises ValueError where an exact claim does
    not hold there without any mutant: it can notice none.
    """
    number = sum(len(mutants_of(entry)) for entry in entries)
    done = 0
    longest_first = sorted(entries, key=_ranks, reverse=True)
    with ThreadPoolExecutor(by.number) as pool:
        futures = {pool.submit(by.notices, entry, on): entry.id for entry in longest_first}
        try:
            for future in as_completed(futures):
                notices = future.result()
                done += len(notices)
                progress(done / number, f"{futures[future]}: {len(notices)} mutants")
                yield from notices
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _ranks(entry: Entry) -> int:
    """Counts the processes of an entry: those of several take longest, and begin."""
    return contender.world_size(Job(setting=Setting(baseline=entry.card.baselines[0]), stack=entry.id))


def _said(id: str, on: Sequence[str]) -> list[dict[str, Any]]:
    """Returns what notices each mutant, in plain values."""
    return [_plain(notice) for notice in _notices(id, on)]


def _plain(notice: Notice) -> dict[str, Any]:
    return {"claims": list(notice.claims), "error": notice.error, "baseline": notice.baseline}


def _heard(mutant: Mutant, said: Mapping[str, Any]) -> Notice:
    """Does the inverse of :func:`_plain`."""
    return Notice(mutant, tuple(map(str, said["claims"])), str(said["error"]), str(said["baseline"]))


def _notices(id: str, on: Sequence[str]) -> list[Notice]:
    """Returns what notices each mutant, each in a process of its own."""
    fork_servers.shared = lambda arithmetic: ThisProcess()  # type: ignore[assignment]
    torch.set_num_threads(1)  # a forked process has no threads of a pool that was there before
    entry = catalogue()[id]
    applicable = [baseline for baseline in on if baseline in entry.card.baselines]
    of_the_whole = cache(partial(_of_the_whole, entry))
    notices: list[Notice] = []
    for mutant in mutants_of(entry):
        notices.append(_first_notice(mutant, applicable, of_the_whole))
        applicable.sort(key=lambda name: name != notices[-1].baseline)  # what noticed one may well notice the next
    return notices


def _first_notice(mutant: Mutant, on: Sequence[str], of_the_whole: Callable[[str, str], frozenset[str]]) -> Notice:
    """Returns what notices a mutant, on the first of the baselines where something notices it."""
    notice = Notice(mutant)
    for baseline in on:
        notice = replace(_forked(mutant, baseline, of_the_whole(mutant.settings, baseline)), baseline=baseline)
        if not notice.survives:
            break
    return notice


def _of_the_whole(entry: Entry, settings: str, baseline: str) -> frozenset[str]:
    """Returns the claims that do not hold of the technique as it is with these settings: they are of others, and see
    nothing.

    Raises ValueError where it does not run with them, and where one does not hold of the defaults.
    """
    know_reference(entry.card, [baseline], _size(entry))
    gc.collect()
    gc.freeze()  # what the forked ones share they need not search
    whole = Mutant(entry.id, f"as it is with {settings}" if settings else "as it is", settings=settings)
    notice = _forked(whole, baseline)
    if settings and notice.error:
        raise ValueError(f"{entry.id} {whole.name}: {notice.error}; mend {entry.folder / FILE}")
    if not settings and not notice.survives:
        raise ValueError(f"{entry.id} {whole.name}: {notice.sentence}; mend that before trying mutants")
    return frozenset(notice.claims)


def _forked(mutant: Mutant, baseline: str, of_the_whole: frozenset[str] = frozenset()) -> Notice:
    try:
        said = in_child(_tried, mutant, baseline, of_the_whole, limit_s=LIMIT_S, server=ThisProcess())
        return _heard(mutant, said)
    except ContenderFailed as failed:
        return Notice(mutant, error=f"its process: {failed}")
    except (LookupError, TypeError) as error:
        return Notice(mutant, error=f"its process said what is no answer: {first_line(error)}")


def _tried(mutant: Mutant, baseline: str, of_the_whole: frozenset[str]) -> dict[str, Any]:
    """Returns what notices a mutant, in plain values."""
    return _plain(_notice(mutant, baseline, of_the_whole))


def _notice(mutant: Mutant, baseline: str, of_the_whole: frozenset[str] = frozenset()) -> Notice:
    """Returns what notices it, asked in a process of its own, on a baseline that is not of the whole."""
    try:
        _break(mutant)
        entry = catalogue()[mutant.technique]
        judgements = exact_verdicts([entry.card], [baseline], _size(entry), mutant.settings)
        broken = {f"{judgement.claim.id} on {baseline}": None for judgement in judgements if judgement.outcome == FAILS}
        if claims := [claim for claim in broken if claim not in of_the_whole]:
            return Notice(mutant, tuple(claims))
        failures = [judgement.reason for judgement in judgements if judgement.reason.startswith(f"{entry.id}:")]
        if failures and all(judgement.outcome == "not measured" for judgement in judgements):  # of several ranks
            return Notice(mutant, error=failures[0])
    except Exception as error:  # whatever a broken technique does
        return Notice(mutant, error=first_line(error))
    return Notice(mutant)


def _size(entry: Entry) -> Size:
    return cast(Size, _file(entry).get("size", SIZE))


def _break(mutant: Mutant) -> None:
    """Breaks the technique in this process and in those that it forks."""
    contender.WORLD_SIZES.clear()
    if mutant.old:
        sys.meta_path.insert(0, _Edited(mutant))
        for name in [name for name in sys.modules if name.split(".")[0] == mutant.module.split(".")[0]]:
            del sys.modules[name]
        catalogue.cache_clear()
    elif mutant.lacks:
        setattr(catalogue()[mutant.technique].technique, mutant.lacks, getattr(Technique, mutant.lacks))


class _Edited(MetaPathFinder):
    """Finds one module, with an edited source."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = mutant.module
        self.edited = _source(mutant.module).replace(mutant.old, mutant.new)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec, edited = PathFinder.find_spec(name, path), self.edited
        assert spec is not None and spec.origin is not None

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return compile(edited, self.path, "exec", dont_inherit=True)

        return spec_from_file_location(name, spec.origin, loader=Loader(name, spec.origin))


def _source(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"there is no module {module}")
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()
