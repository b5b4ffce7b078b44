"""Says what a baseline is: a fixed model, its data and its recipes, by size.

A baseline has a ``version``: records of different versions are not comparable. Baselines are found through the
entry-point group ``leantrain.baselines``, so this package names none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from suite.loop.recipe import Recipe
from suite.record.job import RecipeName, Setting, Size, Split, Task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from suite.loop.data import Batch, Data


Predictor = Callable[["Batch"], Any]
"""Outputs (an object with ``logits``) for a batch: a model's, or a classical method's."""


@dataclass(frozen=True)
class Sample:
    """Holds something that a model makes of a held-out example, for people to look at: a text, or a picture uint8
    [height, width] in grey."""

    caption: str
    text: str = ""
    picture: Tensor | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        picture = None if self.picture is None else self.picture.tolist()
        return {"caption": self.caption, "text": self.text, "picture": picture}


@dataclass(frozen=True)
class Family:
    """Describes an architecture that users bring, at a tiny size: the contents of its ``config.json``.

    One that is no ``transformer`` has no Transformer blocks, and every technique must refuse it.
    """

    config: Mapping[str, Any]
    transformer: bool = True


class Baseline(ABC):
    """Defines a model + data + recipe that never changes within a version.

    ``data(size, "pretrain")`` is what the baseline trains on. For ``adapt`` a run starts from a checkpoint that the
    baseline itself trained on ``data(size, "source")`` and moves to ``data(size, "adapt")`` (or to the user's data).
    """

    id: ClassVar[str]
    version: ClassVar[int]
    modality: ClassVar[Literal["text", "image"]]
    hub_task: ClassVar[str]  # the Hugging Face Hub's pipeline tag of such models, e.g. "fill-mask"
    quality: ClassVar[str]  # what evaluate()'s "loss" is, in words, e.g. "masked-token cross-entropy (nats)"
    judged_by: ClassVar[Literal["loss", "accuracy"]] = "loss"  # in which the model must beat the classical methods

    @abstractmethod
    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        """Returns the fixed hyper-parameters."""

    def recipe_of(self, setting: Setting) -> Recipe:
        """Returns the hyper-parameters of a setting, with its own steps where it names some, and its learning rate."""
        recipe = self.recipe(setting.size, setting.recipe, setting.task)
        rate = recipe.learning_rate * setting.rate
        return replace(recipe, steps=setting.steps or recipe.steps, learning_rate=rate)

    @abstractmethod
    def data(self, size: Size, split: Split, location: str | None = None) -> Data:
        """Returns the embedded data, or a Hugging Face data set by hub id or local path (``location``)."""

    def shapes(self, size: Size, split: Split, location: str | None = None) -> Data:
        """Returns what :meth:`data` gives, for whoever looks at shapes alone; values need not be read to say them. How
        many examples there are may differ."""
        return self.data(size, split, location)

    @abstractmethod
    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        """Returns a freshly initialised model under torch's current seed; ``override`` is a Hugging Face configuration
        folder or a timm model name to use in place of the baseline's own."""

    def families(self) -> Mapping[str, Family]:
        """Returns the architectures that may take the model's place, by name, for techniques to be tried on; none by
        default."""
        return {}

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Returns the model's outputs (an object with ``logits``) for a batch; no loss is computed from added terms."""

    @abstractmethod
    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        """Returns the per-example training losses, float32 [batch]; their mean is the loss."""

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Returns further per-example test metrics [batch], e.g. accuracy in {0, 1}; none by default."""
        return {}

    def further_scores(self, model: nn.Module, data: Data, test: Sequence[Batch]) -> dict[str, float]:
        """Tells what else a trained model is worth, by name, and what simpler methods are, which it need not beat;
        ``test`` are the test batches. Nothing by default."""
        return {}

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        """Returns the classical methods that the model must beat, by name, fitted to the training examples; none by
        default."""
        return {}

    def samples(self, predict: Predictor, batch: Batch) -> list[Sample]:
        """Returns what ``predict`` makes of the examples of a test batch, shown; none by default."""
        return []

    def mean_scores(self, predict: Predictor, batches: Iterable[Batch]) -> dict[str, float]:
        """Returns the means over all examples of the test loss and the further metrics of what ``predict`` gives."""
        sums: dict[str, float] = {}
        examples = 0
        for batch in batches:
            outputs = predict(batch)
            scores = {"loss": self.losses(outputs, batch), **self.metrics(outputs, batch)}
            examples += len(scores["loss"])
            for name, values in scores.items():
                sums[name] = sums.get(name, 0.0) + values.double().sum().item()
        return {name: total / examples for name, total in sums.items()}
