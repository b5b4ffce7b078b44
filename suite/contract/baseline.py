"""What a baseline is: a fixed model, its data and its recipes, by size.

A baseline has a ``version``: records of different versions are not comparable. Baselines are found through the
entry-point group ``leantrain.baselines``, so this package names none of them.
"""

from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor, nn

from suite.contract.data import Batch, Data
from suite.contract.recipe import Recipe

Size = Literal["nano", "micro", "base", "large"]
RecipeName = Literal["classic", "modern", "compiled"]
Task = Literal["pretrain", "adapt"]
Split = Literal["pretrain", "source", "adapt"]
SIZES: tuple[Size, ...] = get_args(Size)
RECIPES: tuple[RecipeName, ...] = get_args(RecipeName)
TASKS: tuple[Task, ...] = get_args(Task)


class Baseline(ABC):
    """A model + data + recipe that never changes within a version.

    ``data(size, "pretrain")`` is what the baseline trains on. For ``adapt`` a run starts from a checkpoint that the
    baseline itself trained on ``data(size, "source")`` and moves to ``data(size, "adapt")`` (or to the user's data).
    """

    id: ClassVar[str]
    version: ClassVar[int]
    modality: ClassVar[Literal["text", "image"]]
    hub_task: ClassVar[str]  # the Hugging Face Hub's pipeline tag of such models, e.g. "fill-mask"
    quality: ClassVar[str]  # what evaluate()'s "loss" is, in words, e.g. "masked-token cross-entropy (nats)"

    @abstractmethod
    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        """The fixed hyper-parameters."""

    @abstractmethod
    def data(self, size: Size, split: Split, location: str | None = None) -> Data:
        """The embedded data, or a Hugging Face data set by hub id or local path (``location``)."""

    @abstractmethod
    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        """A freshly initialised model under torch's current seed; ``override`` is a Hugging Face configuration folder
        or a timm model name to use in place of the baseline's own."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """The model's outputs (an object with ``logits``) for a batch; no loss is computed from added terms."""

    @abstractmethod
    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        """Per-example training losses, float32 [batch]; their mean is the loss."""

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Further per-example test metrics [batch], e.g. accuracy in {0, 1}; none by default."""
        return {}


@cache
def baselines() -> dict[str, Baseline]:
    """All installed baselines by id."""
    found = [entry.load()() for entry in entry_points(group="leantrain.baselines")]
    return {baseline.id: baseline for baseline in sorted(found, key=lambda baseline: baseline.id)}
