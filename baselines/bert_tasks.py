"""Trains BERT on texts with classes, as on GLUE (Devlin et al., section 4.1), with the mean over a text's tokens
classified.

The paper classifies the first token's state, which the next-sentence task has trained: there is none here, and nothing
has taught that token where to look. The checkpoint is trained on rows as long as these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast

from torch import Tensor, nn
from transformers import AutoModelForTokenClassification, BertForMaskedLM, BertForTokenClassification

from baselines import bert, models
from baselines.bert import BRANCHES, LONGEST_WAVE, MASKED_SHARE, Bert, MaskedTokens
from baselines.initialisation import begin_at_sinusoids, shrink_branches
from baselines.labelled_text import LabelledText, is_labelled, labelled_text
from baselines.text import VOCABULARY, text_data
from baselines.tokens import Tokens, check_known, tokens_of
from suite.loop.baseline import Baseline, Predictor, Sample
from suite.loop.data import Batch, Data
from suite.record.job import Setting, Size

LENGTH: dict[Size, int] = {"pico": 32, "nano": 64, "micro": 128, "mini": 128, "base": 128, "large": 128}


class OfTexts(NamedTuple):
    """Holds ``logits`` [batch, 1, classes]: what is said of a text, as of one token."""

    logits: Tensor


def form(setting: Setting) -> Baseline | None:
    """Returns the classifier, where the user's data has classes. Raises ValueError where a checkpoint knows other
    tokens."""
    if setting.data is not None and is_labelled(setting.data):
        return BertClassifier(tokens_of(setting.size, setting.model))
    check_known(setting.model, "texts with a column of labels")
    return None


class BertClassifier(Bert):
    quality: ClassVar[str] = "classification cross-entropy (nats)"
    hub_task: ClassVar[str] = "text-classification"
    judged_by: ClassVar[Literal["loss", "accuracy"]] = "accuracy"

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        if split == "adapt" and location is not None:
            return labelled_text(location, LENGTH[size], self.tokens)
        transform = MaskedTokens(VOCABULARY[size], MASKED_SHARE[size])
        return text_data(size, "source", None, LENGTH[size], framed=True, transform=transform)

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if override is not None:
            return self._of_a_user(override, size, data)
        config: Any = super().model(size, data).config
        config.max_position_embeddings = max(LENGTH[size], config.max_position_embeddings)
        if isinstance(data, LabelledText):
            config.num_labels = data.classes
            model: Any = BertForTokenClassification(config)
        else:
            model = BertForMaskedLM(config)
        if size in LONGEST_WAVE:
            longest = LONGEST_WAVE[size] * LENGTH[size] / bert.LENGTH[size]
            begin_at_sinusoids(model.bert.embeddings.position_embeddings, longest, config.initializer_range)
            shrink_branches(model, BRANCHES)
        return cast(nn.Module, model)

    def _of_a_user(self, folder: str, size: Size, data: Data) -> nn.Module:
        if not isinstance(data, LabelledText):
            return bert._of_a_user(folder, VOCABULARY[size], LENGTH[size])
        auto = AutoModelForTokenClassification
        config = models.configuration(folder, auto._model_mapping, "classification")
        config.num_labels = data.classes
        return self.tokens.model(auto, config, folder, LENGTH[size])

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        return {}

    def samples(self, predict: Predictor, batch: Batch) -> list[Sample]:
        return []

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        if (mask := batch.get("attention_mask")) is None:  # the checkpoint's own rows
            return super().forward(model, batch)
        tokens = model(input_ids=batch["input_ids"], attention_mask=mask).logits
        share = (mask / mask.sum(1, keepdim=True)).to(tokens.dtype)
        return OfTexts((tokens * share[..., None]).sum(1, keepdim=True))
