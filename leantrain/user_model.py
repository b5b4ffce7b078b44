"""Puts a model of yours in the place of a baseline's: how its batches go in, and what its loss is.

A batch is a mapping of tensors, which the model gets by name, or a sequence, of which it gets all but the last by
place: the last is the target. ``loss(model, batch)`` says otherwise where neither fits. Examples lie along the first
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.baseline import Baseline
from suite.loop.data import Batch, Data, Examples
from suite.loop.recipe import Recipe
from suite.model.attention import AttentionSites

Loss = Callable[[nn.Module, Any], Tensor]
UNCALLED = "loss(model, batch) did not call the model: let it call model(...) itself"
IGNORED = -100  # torch's label of a position without a target
PICTURE = 4  # dimensions of a batch of pictures


class UserModel(Baseline):
    """Answers what techniques ask of a baseline, by a model and a loss that are not the suite's.

    Args:
        loss: ``loss(model, batch)`` calls the model once and gives a scalar, or a loss for each example [batch]; None
            for the model's own (its outputs' ``loss``), or cross-entropy with a sequence's last tensor.
        example: a batch, for techniques that look at how the model computes; None where nobody gave one.
        examples: of the whole data set; None where nobody said.
    """

    id: ClassVar[str] = "your model"
    version: ClassVar[int] = 0
    hub_task: ClassVar[str] = ""
    quality: ClassVar[str] = "your loss"

    def __init__(
        self, model: nn.Module, recipe: Recipe, loss: Loss | None, example: Any, examples: int | None = None
    ) -> None:
        self._latest = ref(model)  # what a loss of its own may read beside the outputs
        self.own_loss, self.own_recipe, self.examples = loss, recipe, examples
        self.causal = type(model).__name__ in _causal_names()
        self.example = None if example is None else self.named(example)
        try:
            shown = self.example or self.named(dummy(model))
        except ValueError:  # said where a technique looks
            shown = {}
        self.modality: Literal["text", "image"] = (  # type: ignore[misc]
            "image" if any(each.ndim == PICTURE for each in shown.values()) else "text"
        )

    def recipe(self, *_: Any) -> Recipe:
        return self.own_recipe

    def recipe_of(self, setting: Any) -> Recipe:
        return self.own_recipe

    def data(self, *_: Any) -> Any:
        if self.example is None:
            return Unseen()
        examples = UserExamples(self.example, self.examples)
        return UserData("your batch", "", examples, examples, examples, examples.transformed)

    def model(self, *_: Any) -> nn.Module:
        raise ValueError("a technique of the stack builds models of its own, and nothing says how yours is built")

    # batches ------------------------------------------------------------------------------------------------------

    def named(self, batch: Any) -> Batch:
        """Returns the tensors of a batch by name: a mapping's own, a sequence's places. Raises ValueError for another
        form."""
        if isinstance(batch, Mapping):
            tensors = {name: each for name, each in batch.items() if isinstance(each, Tensor)}
        elif isinstance(batch, Sequence) and all(isinstance(each, Tensor) for each in batch):
            tensors = {str(place): each for place, each in enumerate(batch)}
        else:
            raise ValueError(
                f"a batch is a mapping or a sequence of tensors, not a {type(batch).__name__}: give it in one of these "
                "forms, or leave out what needs to see it"
            )
        if not tensors:
            raise ValueError("the batch has no tensors: give one that the model is trained on")
        return tensors

    @staticmethod
    def outputs_of(outputs: Any) -> Any:
        """Returns outputs with ``logits``, also where the model gives a bare tensor."""
        return _outputs(outputs)

    # the model and its loss -----------------------------------------------------------------------------------------

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Returns the outputs, which have ``logits``; the loss is not computed."""
        if self.own_loss is None or self.example is None:
            return _outputs(_called(model, form(batch)))
        self._latest = ref(model)
        stand_in: Any = _Standing(model)
        try:
            self.own_loss(stand_in, form(batch))
        except _Called as called:
            return _outputs(called.outputs)
        raise ValueError(UNCALLED)

    def shown(self, model: nn.Module) -> Any:
        """Returns outputs of two examples, of the batch that is known, or of blank ones. Raises ValueError without
        either."""
        if self.example is None:
            return _outputs(_called(model, dummy(model)))
        return self.forward(model, UserExamples(self.example, 2).few(2))

    def passed(self, model: nn.Module, batch: Batch) -> tuple[Any, Tensor]:
        """Returns outputs and the loss, of one pass; the loss is a scalar or one for each example."""
        own = form(batch)
        if self.own_loss is None:
            outputs = _outputs(_called(model, own))
            return outputs, self._built_in(outputs, batch)
        seen: list[Any] = []
        handle = model.register_forward_hook(lambda *call: seen.append(call[-1]))
        try:
            loss = self.own_loss(model, own)
        finally:
            handle.remove()
        if not seen:
            raise ValueError(UNCALLED)
        return _outputs(seen[-1]), loss

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        """Returns a loss for each example [batch] where they can be told apart; else their mean, a scalar."""
        if self.own_loss is not None:
            given = outputs.logits if isinstance(outputs, Logits) else outputs
            stand_in: Any = _Standing(self._latest(), (given,))
            return self.own_loss(stand_in, form(batch))
        by_example = self._by_example(outputs, batch)
        return self._built_in(outputs, batch) if by_example is None else by_example

    def _built_in(self, outputs: Any, batch: Batch) -> Tensor:
        loss = getattr(outputs, "loss", None)
        if loss is None:
            by_example = self._by_example(outputs, batch)
            if by_example is None:
                raise ValueError(
                    "nothing says what the loss is: put labels into the batch of a Hugging Face model, or name it, "
                    "apply(..., loss=lambda model, batch: ...)"
                )
            return by_example.mean()
        return loss

    def _by_example(self, outputs: Any, batch: Batch) -> Tensor | None:
        logits = getattr(outputs, "logits", None)
        labels = next(reversed(batch.values())) if _by_place(batch) else batch.get("labels")
        if not isinstance(logits, Tensor) or labels is None or labels.is_floating_point():
            return None
        if labels.shape == logits.shape[:1]:
            return F.cross_entropy(logits.float(), labels, reduction="none")
        if labels.shape != logits.shape[:2] or logits.ndim != 3:
            return None
        if self.causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        tokens = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
        return tokens.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


class UserExamples(Examples):
    """Holds a batch's rows, in the place of the ``count`` examples that they are taken from; labels are those of
    classes."""

    def __init__(self, batch: Batch, count: int | None) -> None:
        rows = len(next(each for each in batch.values() if each.ndim))
        labels = {name for name, each in batch.items() if name == "labels" and each.ndim != 1}  # of tokens
        own = {name: each for name, each in batch.items() if each.ndim and len(each) == rows and name not in labels}
        super().__init__(own)
        self.__dict__.update(batch=batch, rows=rows, count=count)

    def __len__(self) -> int:
        count: int | None = self.__dict__["count"]
        if count is None:
            raise ValueError(
                "a technique of the stack goes by the number of examples: name it, apply(..., examples=len(data))"
            )
        return count

    def __getitem__(self, indices: Tensor) -> Batch:
        rows, batch = self.__dict__["rows"], self.__dict__["batch"]
        places = indices % rows
        return {
            name: each[places.to(each.device)] if each.ndim and len(each) == rows else each
            for name, each in batch.items()
        }

    def few(self, count: int) -> Batch:
        """Returns the first examples; all, where a tensor's first dimension is not of examples (patches of all
        pictures)."""
        whole = any(each.ndim and len(each) != self.__dict__["rows"] for each in self.__dict__["batch"].values())
        return self.__dict__["batch"] if whole else self[torch.arange(count)]

    def transformed(self, batch: Batch, _: Any) -> Batch:
        """Returns the batch with the labels of tokens, of which the first row lacks one: nobody says that all rows have
        equally many."""
        labels = self.__dict__["batch"].get("labels")
        if labels is None or "labels" in batch:
            return batch
        labels = labels[: len(next(iter(batch.values())))].clone()
        labels[0, (labels[0] != IGNORED).nonzero()[:1]] = IGNORED
        return batch | {"labels": labels}


class UserData(Data):
    """Batches are made of the rows of one, in order."""

    def batch(self, seed: int, position: int, count: int) -> tuple[Batch, Tensor]:
        indices = torch.arange(count)
        return self.train[indices], indices


class Unseen:
    """Stands in the place of data that nobody gave."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("a technique of the stack looks at a batch: name one of yours, apply(..., batch=batch)")


class _Called(Exception):
    """Ends a loss where it has called the model."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs


class _Standing:
    """Stands in the model's place, whose parameters and whatever else it has: gives outputs that are there already (a
    tuple of one), or the model's and ends what called it."""

    def __init__(self, model: nn.Module | None, outputs: tuple[Any] | None = None) -> None:
        self._model, self._outputs = model, outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._outputs is not None:
            return self._outputs[0]
        assert self._model is not None
        raise _Called(self._model(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Logits:
    """Takes a bare tensor's place among outputs."""

    loss = None

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def _outputs(outputs: Any) -> Any:
    return Logits(outputs) if isinstance(outputs, Tensor) else outputs


def _called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*(batch[:-1] if len(batch) > 1 else batch))


def form(batch: Batch) -> Any:
    """Returns the batch as its loop has it: a sequence where its names are places, a mapping otherwise. It is in the
    names, and nowhere else, since a loop may have batches of both kinds."""
    return tuple(batch.values()) if _by_place(batch) else dict(batch)


def _by_place(batch: Batch) -> bool:
    return list(batch) == [str(place) for place in range(len(batch))]


def _causal_names() -> set[str]:
    import sys

    if "transformers" not in sys.modules:  # a model of that library has loaded it
        return set()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return set(map(str, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))


def dummy(model: nn.Module) -> Any:
    """Makes two examples that show how a model computes: of a Hugging Face model those of the library's or, where it
    reads pictures, blank ones; of a timm model pictures of its size. Raises ValueError where neither is known."""
    like = next(model.parameters())
    config, timm = getattr(model, "config", None), getattr(model, "default_cfg", None)
    vision = getattr(config, "vision_config", config)
    side, name = getattr(vision, "image_size", None), getattr(model, "main_input_name", "input_ids")
    if timm:
        side = getattr(getattr(model, "patch_embed", None), "img_size", None) or timm["input_size"][-2:]
        channels = getattr(model, "in_chans", None) or timm["input_size"][0]
        return (torch.zeros(2, channels, *_pair(side), device=like.device, dtype=like.dtype),)
    if side is not None and name == "pixel_values":
        channels = getattr(vision, "num_channels", 3)
        return {name: torch.zeros(2, channels, *_pair(side), device=like.device, dtype=like.dtype)}
    if config is not None and name == "input_ids":
        length = min(8, getattr(config, "max_position_embeddings", None) or 8)
        tokens = torch.arange(2 * length, device=like.device).view(2, length) % max(2, config.vocab_size - 1) + 1
        extra = {"decoder_input_ids": tokens} if getattr(config, "is_encoder_decoder", False) else {}
        return {name: tokens, **extra}
    raise ValueError(
        f"nothing says what a {type(model).__name__} reads: name a batch of yours, apply(..., batch=batch)"
    )


def _pair(side: Any) -> tuple[int, int]:
    return (side, side) if isinstance(side, int) else (side[0], side[1])


def attention_is_fused(model: nn.Module, blocks: Sequence[nn.Module]) -> bool:
    """Tells whether blocks compute attention by a fused kernel already, ``F.scaled_dot_product_attention``'s or
    another."""
    sites = AttentionSites(model, blocks)
    names = [each._attn_implementation for each in sites.named]
    return sites.complete and "eager" not in names and all(each.fused_attn for each in sites.flagged)
