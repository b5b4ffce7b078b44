"""Has the card of a technique: what it is, where it comes from, where it applies, and what its paper claims.

A card is a TOML file beside the technique. Claims are data: a statement, where the paper makes it, and a predicate that
records can be judged by. How well a statement is known is data as well: ``read`` is where somebody read it. The shared
study that a technique takes part in is data, too: its stacks and ranges.

What an implementation must satisfy (identities, counts of this entry's own choice) is no promise of the paper. Such a
property stands on the probe that shows it, in ``probes.py`` (:mod:`suite.reading.judged`), or in the card as
``[[property]]`` where a metric shows it; it is judged as claims are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from suite.entries.origins import Origins
from suite.entries.properties import MisstatedError, Stated, stated
from suite.record.files import printable, read_plain_text
from suite.record.job import BASELINE, RecipeName, Size, Spelling, StackText, Task

Scope = Literal["kernel", "module", "step", "end_to_end", "time_to_quality"]
PROBES = "probes.py"
Good = Literal["trainable parameters", "communication", "memory", "time", "FLOPs", "robustness"]
GOODS: Mapping[Good, tuple[str, ...]] = {
    "trainable parameters": ("trainable_parameter_count",),
    "communication": ("communication_bytes",),
    "memory": ("peak_tensor_bytes", "saved_activation_bytes", "optimizer_state_bytes", "parameter_count", "peak."),
    "time": ("time_to_quality", "step_time", "training_time", "whole_time", "first_crossing", "equivalent_budget"),
    "FLOPs": ("flops", "training_flops"),
}
"""What a technique sells, by the metrics of claims that promise less of it; the first of these that it promises."""
Kind = Literal["identity", "counted", "quality", "measured", "modelled", "literature"]


class CardError(ValueError):
    """Is raised for a card that cannot be read; the message names the file, the field and the mend."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(Strict):
    title: str
    authors: str
    venue: str
    arxiv: str = ""
    url: str = ""


class Needs(Strict):
    """Says what a run must have for a claim to be judged by it: at least so many steps of the reference, examples a
    batch, parameters; and ``tuned`` learning rates. Where the probe ``active`` is zero in every seed, the mechanism did
    nothing, and the claim was not exercised."""

    steps: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    parameters: int | None = Field(default=None, ge=1)
    tuned: bool = False
    active: str = ""


class PaperSetting(Strict):
    """Says where the paper saw what it claims, in its words; empty where it does not say, or nobody has read it there.
    ``architecture`` is ``any`` where the statement is of every model.

    ``baselines``: those of this suite that have the paper's architecture, at their own sizes. ``length``: of the
    training, in epochs, updates or hours. ``optimizer``: that trains the reference. ``tuned``: what was searched for
    each side; ``clock``: what the time covers.
    """

    architecture: str = ""
    baselines: tuple[str, ...] = ()
    parameters: float | None = Field(default=None, gt=0)
    tokens: float | None = Field(default=None, gt=0)  # or images
    length: str = ""
    batch: str = ""
    data: str = ""
    device: str = ""
    metric: str = ""
    reference: str = ""
    optimizer: str = ""
    tuned: str = ""
    clock: str = ""

    @property
    def sentence(self) -> str:
        """Returns ``architecture GPT-2 small; device 8 A100``."""
        said = {name: value for name, value in self if value and name != "baselines"}
        return "; ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in said.items()
        )


SCOPES: Mapping[str, Scope] = {
    "identity": "step",
    "counted": "step",
    "modelled": "step",
    "quality": "end_to_end",
    "measured": "end_to_end",
    "literature": "end_to_end",
    "time_to_quality": "time_to_quality",
}
"""What a claim on a metric, or of a kind, is about where it does not say."""


STUDY = "study."
"""How the metric of a claim begins that is read from a study's tables."""


class Claim(Strict):
    """Holds one statement of the paper.

    ``read`` says where somebody read it: ``Section 4.2; table 1``, ``Abstract`` where no more could be had, ``Abstract,
    implied`` of what is not said in so many words, ``Authors' code: svd.py``, ``Section 3, as two accounts quote it``.
    ``unread`` stands in its place of a statement that nobody has read where it should be, and says what was tried and
    who quotes it: that is shown, and not judged.

    ``metric`` names a measured quantity (a counter, a probe, ``step_time``, ``loss``, ``time_to_quality``, ...);
    ``expected`` is its value: a cost ratio to the reference (a speedup's inverse) unless ``absolute``, as a probe's
    always is. ``tolerance`` is relative. ``baselines``, ``recipes``, ``sizes`` and ``devices`` are where the
    claim can be judged: everywhere that the card names when empty; ``needs`` is what a run must have for it. Elsewhere
    it is not measured, and never contradicted. ``settings`` are the hyper-parameters that it is about, where those are
    not the defaults; ``against`` is the stack that it is compared with, where that is not the card's reference: another
    technique, or a control, a variant with a setting of that name. ``within`` is a stack that both sides have besides.
    ``study.TABLE.COLUMN`` is a metric, too: of the technique's own study, a share of its seeds in the row that ``cell``
    tells apart by other columns; of a modelled claim the number there, from the row's ``least`` to its ``most``.
    ``setting`` is where the paper saw it; ``note`` says what no field says.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+$")
    statement: str
    read: str = ""
    unread: str = ""
    metric: str
    scope: Scope
    kind: Kind
    expected: float | None = Field(default=None, allow_inf_nan=False)
    relation: Literal["==", "<=", ">=", "<", ">"] = "=="
    absolute: bool = False
    tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    quality_within: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # relative loss above the reference's
    baselines: tuple[str, ...] = ()
    recipes: tuple[RecipeName, ...] = ()
    sizes: tuple[Size, ...] = ()
    devices: tuple[Literal["cpu", "cuda"], ...] = ()
    needs: Needs = Needs()
    settings: str = ""
    against: str = ""
    within: str = ""
    cell: Mapping[str, int | float | str] = {}
    note: str = ""  # one line: what the number is of, or what differs here, where the setting does not say it
    setting: PaperSetting | None = None

    @property
    def source(self) -> str:
        """Tells where it stands, and whether somebody has read it there."""
        return self.read or f"not read: {self.unread}"

    @property
    def conditions(self) -> str:
        """Returns what the card says of the claim besides its predicate: the paper's setting, and the note."""
        return "; ".join(filter(None, (self.setting.sentence if self.setting else "", self.note)))

    @model_validator(mode="before")
    @classmethod
    def _as_usual(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        own = dict(content)
        metric = str(own.get("metric"))
        usual: dict[str, Any] = {"scope": SCOPES.get(metric, SCOPES.get(str(own.get("kind")), "step"))}
        usual |= {"absolute": True} if metric.startswith(("probe.", STUDY)) else {}
        return usual | own

    @model_validator(mode="after")
    def _can_be_judged(self) -> Claim:
        if not isinstance(self, Property) and bool(self.read) == bool(self.unread):
            raise ValueError(
                f"the claim {self.id} needs one of read and unread: where you read it, or why nobody could"
            )
        if self.expected is None and self.kind != "literature":
            raise ValueError(f"the claim {self.id} needs a number in expected; only literature is quoted without one")
        if self.expected is not None and not self.absolute and self.expected <= 0 and self.kind != "literature":
            raise ValueError(f"the claim {self.id} expects a ratio of {self.expected:g}; set absolute = true")
        if of_study(self) != bool(self.cell) or (self.cell and self.metric.count(".") != 2):
            raise ValueError(f'the claim {self.id} is of a study\'s row: metric = "study.TABLE.COLUMN", and its cell')
        return self


def of_study(claim: Claim) -> bool:
    """Tells whether a study's tables decide the claim, and no row."""
    return claim.metric.startswith(STUDY)


class Property(Claim):
    """Says what an implementation must satisfy: no promise of the paper. ``place`` may say where its rule stands."""

    place: str = ""
    kind: Literal["identity", "counted"] = "identity"
    expected: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def source(self) -> str:
        return self.place


# studies that several techniques share; suite/topics/studies says what each one does --------------------------------

N = TypeVar("N", int, float)


def _rising(values: tuple[N, ...]) -> tuple[N, ...]:
    if any(after <= before for before, after in pairwise(values)):
        raise ValueError(f"write each value once, the smallest first, not {', '.join(map(str, values))}")
    return values


def _fraction(text: object) -> object:
    """Returns ``"1/3"`` as the nearest float, so that a card need not round it."""
    if not isinstance(text, str):
        return text
    try:
        return float(Fraction(text))
    except (ValueError, ArithmeticError):
        raise ValueError(f"a rate is a number or a fraction such as 1/3, not {text!r}") from None


Rate = Annotated[float, BeforeValidator(_fraction), Field(gt=0, allow_inf_nan=False)]
Batches = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1), AfterValidator(_rising)]
Rates = Annotated[tuple[Rate, ...], Field(min_length=1), AfterValidator(_rising)]
Shares = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Field(min_length=1), AfterValidator(_rising)]


def filled(template: str, batch: int, rate: float) -> Spelling:
    """Returns the stack that ``template`` spells with ``{batch}`` and ``{rate}``. Raises ValueError where it spells
    none."""
    try:
        return Spelling(template.format(batch=batch, rate=rate))
    except (LookupError, AttributeError, TypeError):
        raise ValueError(f"{template!r} may hold {{batch}} and {{rate}} and nothing else in braces") from None


def _with_batch(template: str) -> str:
    if filled(template, 1, 1.0) == filled(template, 2, 1.0):
        raise ValueError(f"{template!r} spells one stack for every batch: write {{batch}} in it")
    return template


def _with_rate(template: str) -> str:
    if filled(template, 1, 1.0) == filled(template, 1, 2.0):
        raise ValueError(f"{template!r} spells one stack for every rate: write {{rate}} in it")
    return template


BatchTemplate = Annotated[str, AfterValidator(_with_batch)]
Template = Annotated[str, AfterValidator(_with_batch), AfterValidator(_with_rate)]


class BatchSweep(Strict):
    """Steps to quality against the batch size, over one grid of learning rates for the reference and each optimizer.

    ``scaled`` spells what stands before an optimizer in a stack: it trains with ``{batch}`` times the recipe's batch,
    at ``{rate}`` times the learning rate that ``rule`` gives that batch.
    """

    name: Literal["batch_sweep"]
    scaled: Template
    rule: str
    batches: Batches
    rates: Rates
    optimizers: tuple[StackText, ...] = Field(min_length=1)
    baselines: tuple[str, ...] = ()  # where it can be made: everywhere that the card names when empty


class GridContender(Strict):
    """Describes one contender of a rate grid: its stack at each rate, in multiples of the recipe's, and its name in the
    tables.

    ``baselines`` are where it takes part: everywhere when empty.
    """

    label: str
    stacks: Mapping[Rate, StackText] = Field(min_length=1)
    baselines: tuple[str, ...] = ()


class RateGrid(Strict):
    """Measures the final loss over the learning rate, for the reference and for contenders with as many rates each.

    ``scaled`` spells what trains with ``{batch}`` times the recipe's batch; ``reference_scaled`` does so for the
    reference, which tables call ``reference``, at ``{rate}`` times its learning rate, too.
    """

    name: Literal["rate_grid"]
    reference: str
    reference_scaled: Template
    scaled: BatchTemplate
    rates: Rates
    batches: Batches = (1,)
    contender: tuple[GridContender, ...] = Field(min_length=1)
    baselines: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_fair(self) -> RateGrid:
        labels = [self.reference, *(contender.label for contender in self.contender)]
        if len(set(labels)) != len(labels):
            raise ValueError(f"two have one label: {', '.join(labels)}")
        for side in self.contender:
            if len(side.stacks) != len(self.rates):
                raise ValueError(
                    f"{side.label} has {len(side.stacks)} rates and {self.reference} {len(self.rates)}: give every "
                    "side as many, or the comparison is one of how well rates were chosen"
                )
        return self


class LabelNoise(Strict):
    """Measures sharpness and accuracy with a share of the training labels wrong, of ``longer`` times as many steps as
    usual.

    ``reference`` spells the reference with the probes that the table shows; ``stacks`` the others, by what the table
    calls them.
    """

    name: Literal["label_noise"]
    shares: Shares
    longer: int = Field(default=1, ge=1)
    reference: StackText
    stacks: Mapping[str, StackText] = Field(min_length=1)
    baselines: tuple[str, ...] = ()


Rising = Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], AfterValidator(_rising)]


class LinkSweep(Strict):
    """Measures the speed-up of ``stack``, which trains on several ranks, over its reference against the bandwidth
    between ranks, at ``mbit`` Mbit/s and without a limit.

    ``paper`` says in words on which network the paper measured, ``paper_mbit`` and ``paper_speedup`` in numbers; they
    are None where it does not say, or not of one technique over the other.
    """

    name: Literal["link_sweep"]
    stack: StackText
    mbit: Rising = Field(default=(10.0, 30.0, 100.0, 300.0, 1000.0), min_length=1)
    paper: str = ""
    paper_mbit: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    paper_speedup: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    baselines: tuple[str, ...] = ()


SharedStudy = Annotated[BatchSweep | RateGrid | LabelNoise | LinkSweep, Field(discriminator="name")]


class MeasuredByOthers(Strict):
    """Names published rows that are of the technique: those of a ``table`` whose technique column has ``technique``;
    with ``against`` in its place, it names the row that they are held against. ``differs``: what else sets theirs apart
    from this entry, in words."""

    table: str = Field(pattern=r"^[a-z0-9_]+$")
    technique: str = Field(min_length=1)
    against: str = ""
    differs: str = ""


MOST_WORDS = 6


def _short(does: str) -> str:
    """Returns what is short enough for a table's cell. Raises ValueError for more words."""
    if len(does.split()) > MOST_WORDS:
        raise ValueError(f"does is {len(does.split())} words long: say what it does in {MOST_WORDS} words at most")
    return does


class Card(Origins):
    """Holds a card (see the module), with where its numbers come from. ``reference`` is ``baseline`` or the id of the
    technique that this one is compared against."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    name: str
    does: Annotated[str, AfterValidator(_short)] = ""  # what it does, in at most six words, for tables
    category: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    summary: str
    paper: Paper
    surveys: tuple[Literal["zhuang2023", "gusak2022"], ...] = ()
    baselines: tuple[str, ...]
    task: Task = "pretrain"
    reference: StackText = BASELINE
    variant: str = ""  # which of the inequivalent public forms this is, and why
    limitations: str = ""  # what the counted or measured numbers do not show
    counter_evidence: str = ""
    own_loop: str = ""  # why it has no meaning in a loop of a user's own, in one sentence; empty where it has one
    peers: tuple[str, ...] = ()
    by_others: tuple[MeasuredByOthers, ...] = ()
    sells: Good | None = None  # where the claims do not say so
    acts: Mapping[str, str] = {}  # where a hyper-parameter acts that changes nothing in a short run at pico
    tune: tuple[Literal["rate"], ...] = ()  # what is chosen on validation data, of one grid for both sides
    claim: tuple[Claim, ...] = ()
    study: SharedStudy | None = None  # the one that it takes part in; a study of its own is a study.py beside the card
    properties: tuple[Property, ...] = Field(default=(), validation_alias="property")  # with those of the probes

    @property
    def good(self) -> Good:
        """Returns what it sells, by which it is grouped: what the claims promise less of, else robustness."""
        promised = [claim.metric for claim in self.claim if _promises_less(claim)]
        for good, names in GOODS.items():
            if not self.sells and any(metric.startswith(names) for metric in promised):
                return good
        return self.sells or "robustness"

    @property
    def judged(self) -> tuple[Claim, ...]:
        """Returns the claims and properties."""
        return (*self.claim, *self.properties)


def _promises_less(claim: Claim) -> bool:
    less = claim.expected is not None and (claim.expected < 1 or (claim.expected == 1 and claim.relation == "<"))
    return less and claim.relation in ("==", "<=", "<")


def read_card(path: Path) -> Card:
    """The card at ``path``, with the properties of the probes beside it. Raises CardError with one sentence per
    problem."""
    card = _read(path)
    for each in card.properties:
        if each.metric.startswith("probe."):
            raise CardError(f"{path}: the property {each.id} is of a probe: write it on the function in {PROBES}")
    if (unread := path.with_name("properties.toml")).exists():
        raise CardError(f"{unread} is read by nothing: write its properties on the functions of {PROBES}; delete it")
    if (probes := path.with_name(PROBES)).is_file():
        card = card.model_copy(update={"properties": (*_stated_in(probes, card.id), *card.properties)})
    if card.id != path.parent.name or card.category != path.parent.parent.name:
        raise CardError(f"{path}: id and category must be the names of its folders, not {card.category}/{card.id}")
    _check_names(card, path)
    return card


def _read(path: Path) -> Card:
    try:
        return Card.model_validate(tomllib.loads(read_plain_text(path)))
    except OSError as error:
        raise CardError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise CardError(f"{path}: {_problems(error)}") from None
    except (ValueError, RecursionError, OverflowError) as error:  # tomllib's own, and what it lets through
        raise CardError(f"{path}: not valid TOML: {printable(str(error))}") from None


def _problems(error: ValidationError, words: Mapping[str, str] = {}) -> str:
    """What is wrong, field by field; ``words`` are what the file calls a field where that is not its name."""
    problems = (
        (".".join(words.get(str(part), str(part)) for part in problem["loc"]), problem["msg"])
        for problem in error.errors()
    )
    return printable("; ".join(f"{place}: {message}" if place else message for place, message in problems))


def _stated_in(path: Path, technique: str) -> tuple[Property, ...]:
    """The properties of ``technique`` that stand on the functions of the file at ``path``."""
    try:
        every = [*stated(read_plain_text(path))]
    except OSError as error:
        raise CardError(f"{path}: cannot be read: {error.strerror}") from None
    except MisstatedError as error:
        raise CardError(f"{path}:{error.line}: {printable(str(error))}") from None
    except ValueError as error:
        raise CardError(f"{path}: not valid Python: {printable(str(error))}") from None
    return tuple(_property(path, each, technique) for each in every)


def _property(path: Path, said: Stated, technique: str) -> Property:
    try:
        return Property.model_validate({"metric": f"probe.{technique}.{said.probe}", **said.fields})
    except ValidationError as error:
        raise CardError(f"{path}:{said.line}: {_problems(error, {'expected': said.bound})}") from None


def _check_names(card: Card, path: Path) -> None:
    names = [claim.id for claim in card.judged]
    if len(set(names)) != len(names):
        raise CardError(f"{path}: two claims have the same id")
    for claim in card.judged:
        if foreign := sorted(set(claim.baselines) - set(card.baselines)):
            others = printable(", ".join(foreign))
            raise CardError(f"{path}: the claim {claim.id} names {others}, which the card's baselines lack")
    if card.study and (foreign := sorted(_baselines_of(card.study) - set(card.baselines))):
        others = printable(", ".join(foreign))
        raise CardError(f"{path}: the study {card.study.name} names {others}, which the card's baselines lack")


def _baselines_of(study: BatchSweep | RateGrid | LabelNoise | LinkSweep) -> set[str]:
    contenders = study.contender if isinstance(study, RateGrid) else ()
    return {*study.baselines, *(name for contender in contenders for name in contender.baselines)}
