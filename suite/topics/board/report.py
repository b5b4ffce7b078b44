"""Reads all that a report is made of from a results folder in one place. Pages are pure functions of it.

Reading one loads no torch, nor do pages, but for the plot of a study that none was kept of.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from suite.entries.card import Card
from suite.entries.cards import with_cards
from suite.entries.catalogue import Entry, catalogue
from suite.judge.at_scale import CountsAtScale, counts_at_scale
from suite.judge.claims import Judgement, only_controls, verdicts
from suite.judge.evidence import Currency
from suite.judge.rows import Row, rows
from suite.judge.study_tables import read_studies
from suite.judge.versions import installed_quality, installed_version
from suite.record.files import read_plain_text
from suite.record.job import Spelling
from suite.record.schema import Counted, Learned
from suite.record.store import Records, Store, collection_paused
from suite.show.pages.board import Board, boards
from suite.show.pages.places import PlacedRow, placed_rows
from suite.topics.claims.negative import NegativeResult, negative_results
from suite.topics.modelled_time import gpu_times
from suite.topics.modelled_time.gpu_times import GpuTimes
from suite.topics.models.models_on_board import Shown
from suite.topics.peers import peers_on_board as peers
from suite.topics.peers.peers_on_board import PeerRow
from suite.topics.references import learned_references as of_references
from suite.topics.references.learned_references import Kind
from suite.topics.references.references_on_board import ShownReferences
from suite.topics.studies import study_plots
from suite.topics.studies.studies_on_board import Studied


@dataclass(frozen=True)
class Folder:
    """Holds what a technique's folder has beside its card. ``module``: the dotted name of its technique.py, which has
    the public ``names``; ``mutants``: the names of the broken variants."""

    module: str
    names: tuple[str, ...] = ()
    mutants: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: Entry) -> Folder:
        """Reads the folder, without importing anything of it. What cannot be read there is left out."""
        try:
            tree = ast.parse(read_plain_text(entry.folder / "technique.py"))
            path = entry.folder / "mutants.toml"
            written = tomllib.loads(read_plain_text(path)).get("mutant", []) if path.is_file() else []
        except (OSError, ValueError, SyntaxError):  # a plug-in may hold anything; its tests say what is wrong
            return cls(entry.module)
        public = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        ]
        adapters = {node.name for node in public if isinstance(node, ast.ClassDef) and _is_adapter(node)}
        names = tuple(node.name for node in public if node.name not in adapters)
        return cls(entry.module, names, tuple(str(mutant.get("name", "")) for mutant in written))


def _is_adapter(node: ast.ClassDef) -> bool:
    """Tells whether the class is for this suite: it derives from what is called Technique."""
    return any(ast.unparse(base).endswith("Technique") for base in node.bases)


@dataclass(frozen=True)
class Origin:
    """Says where a record comes from: ``started`` in ISO 8601, ``commit`` empty where none is known."""

    kind: str
    stack: str
    started: str
    machine: str
    commit: str


def origins(records: Records) -> dict[str, Origin]:
    """Returns the origin of every piece of evidence, by its id."""
    runs: list[Counted | Learned] = [*records.counted, *records.learned]
    timings = [(timing, timing.contenders[1].stack if len(timing.contenders) > 1 else "") for timing in records.timed]
    return {
        piece.id: Origin(
            piece.kind, stack, piece.started, piece.home.name, str(piece.machine.context.get("git_commit") or "")
        )
        for piece, stack in [*((run, run.stack) for run in runs), *timings]
    }


@dataclass(frozen=True)
class Report:
    """Holds what a page shows.

    Attributes:
        problems: the store's sentences about lines that it could not read.
        verdicts: on the papers' claims.
        cards: of techniques by their id.
        studies: each with whether its code changed since.
        unreadable: sentences about other files of the folder, for whoever asked for the report.
        records: how many were read.
        models: which technique works on which model; None where that was not tried.
        paper_scale: what techniques take at the papers' own sizes.
        gpu_times: of steps there, modelled.
        references: what they have learned and can tell apart.
        folders: of techniques by their id.
        origins: of records by their id.
        qualities: by baseline what its loss is, in words.
        negative: what did not hold, the newest first.
        folder: where the results were read from, for a section with a file of its own.
        peers: techniques beside other packages' implementations, which are in no other row.
    """

    rows: Sequence[Row] = ()
    problems: Sequence[str] = ()
    verdicts: Sequence[Judgement] = ()
    cards: Mapping[str, Card] = field(default_factory=dict)
    studies: Sequence[Studied] = ()
    unreadable: Sequence[str] = ()
    records: int = 0
    models: Shown | None = None
    paper_scale: CountsAtScale = field(default_factory=CountsAtScale)
    gpu_times: GpuTimes = field(default_factory=GpuTimes)
    references: ShownReferences = field(default_factory=ShownReferences)
    folders: Mapping[str, Folder] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    qualities: Mapping[str, str] = field(default_factory=dict)
    negative: Sequence[NegativeResult] = ()
    peers: Sequence[PeerRow] = ()
    folder: Path | None = None

    @cached_property
    def boards(self) -> list[Board]:
        """The rows on boards."""
        return boards(self.rows)

    @cached_property
    def placed(self) -> list[PlacedRow]:
        """Where each row stands on a page of all boards."""
        return placed_rows(self.boards)

    @classmethod
    def read(cls, folder: Path, stacks: Collection[str] = (), on: Collection[str] = ()) -> Report:
        """Reads a results folder: rows of these ``stacks`` on the baselines ``on``, where none are named all but those
        of controls, by which claims are judged."""
        with collection_paused():
            return cls._read(folder, stacks, on)

    @classmethod
    def _read(cls, folder: Path, stacks: Collection[str], on: Collection[str]) -> Report:
        from suite.topics.models import tried_models as matrix

        records, problems = Store(folder).read()
        studies, damaged = read_studies(folder)
        named = {name for stack in stacks for name in Spelling(stack).names}
        tried, unread_models = matrix.read_or_why(folder)
        models = tried.of(named if stacks else tried.cells, on) if tried else None
        counts, unread_counts = counts_at_scale(folder, named if stacks else (), on)
        references, unread_references = _references(folder, records, on)
        times, unread_times = _modelled(folder, named if stacks else (), on)
        sound, broken = with_cards(catalogue())
        cards = {id: entry.card for id, entry in sound.items() if not stacks or id in named}
        unreadable = [*damaged, *unread_models, *unread_counts, *unread_times, *unread_references]
        left_out: list[str] = []

        def wanted(stack: str) -> bool:
            return not stacks or not named.isdisjoint(Spelling(stack).names)

        every, of_packages = peers.apart(rows(records, wanted, left_out), records.timed)
        chosen = [
            row for row in every if (not stacks or row.stack in stacks) and (not on or row.conditions.baseline in on)
        ]
        controls = set() if stacks else only_controls(cards.values())
        return cls(
            rows=[row for row in chosen if row.stack not in controls],
            problems=[*problems, *left_out],
            verdicts=[
                verdict
                for verdict in verdicts(chosen, cards.values(), counts, studies)
                if not on or verdict.baseline in ("", *on)
            ],
            negative=negative_results(chosen, cards.values()),
            peers=[
                peer
                for peer in of_packages
                if (not stacks or peer.technique in named) and (not on or peer.row.conditions.baseline in on)
            ],
            cards=cards,
            studies=[
                Studied(study, study.unverified(), study_plots.stored_plot(study, folder))
                for study in studies
                if (not stacks or study.technique in named) and (not on or study.baseline in on)
            ],
            unreadable=[*unreadable, *broken.values()],
            folder=folder,
            records=len(records.lines),
            models=Shown(models, matrix.stale(models)) if models and models.cells else None,
            paper_scale=counts,
            gpu_times=times,
            references=references,
            folders={id: Folder.of(entry) for id, entry in catalogue().items() if id in cards},
            origins=origins(records),
            qualities={name: installed_quality(name) for name in sorted({row.conditions.baseline for row in chosen})},
        )


def _modelled(folder: Path, stacks: Collection[str], on: Collection[str]) -> tuple[GpuTimes, list[str]]:
    """Reads the modelled times of the folder, with a sentence where they cannot be read."""
    try:
        return gpu_times.read(folder).only(stacks, on), []
    except (ValueError, OSError) as error:
        return GpuTimes(), [str(error)]


def _references(folder: Path, records: Records, on: Collection[str]) -> tuple[ShownReferences, list[str]]:
    """Reads what the folder knows of the baselines ``on``, with a sentence where that cannot be read."""
    try:
        known = of_references.read(folder).on(list(on))
    except (ValueError, OSError) as error:
        return ShownReferences(), [str(error)]
    currency = Currency.of(records.renewals)
    every = [*known.learned, *known.power]
    old = {reference.conditions.family for reference in every if not currency.has(reference)}
    newest: dict[str, int] = {}
    for reference in every:
        name, version = reference.conditions.baseline, reference.conditions.baseline_version
        newest[name] = max(version, newest.get(name, installed_version(name) or version))
    older = {
        reference.conditions.family
        for reference in every
        if reference.conditions.baseline_version < newest[reference.conditions.baseline]
    }
    known = known.model_copy(update={"learned": _newest_first(known.learned), "power": _newest_first(known.power)})
    return ShownReferences(known, frozenset(old), frozenset(older)), []


def _newest_first(known: Sequence[Kind]) -> list[Kind]:
    """Sorts what is known of a baseline, the newest version first."""
    return sorted(known, key=lambda reference: (reference.conditions.baseline, -reference.conditions.baseline_version))
