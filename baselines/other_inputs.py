"""Puts models of other inputs in the place of one that tells pictures apart: two towers, and models of speech.

Nothing of them is changed. Two towers tell by which class's description a picture's embedding is nearest to (CLIP,
arXiv 2103.00020, section 3.1.2); a model of speech reads a picture's pixels as a wave, or as a spectrogram.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForAudioClassification, AutoModelForZeroShotImageClassification, PreTrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput

from baselines import models
from baselines.text import CHARACTERS, CLS, PAD, SEP, SPECIAL

SPEECH = AutoModelForAudioClassification._model_mapping
TOWERS = AutoModelForZeroShotImageClassification._model_mapping
DESCRIPTION = 8  # tokens


def has_two_towers(config: PreTrainedConfig) -> bool:
    """Tells whether the configuration is of a tower for pictures and one for texts."""
    return type(config) in TOWERS and hasattr(config, "text_config") and hasattr(config, "vision_config")


class TwoTowers(nn.Module):
    """Classifies pictures by the likeness of their embeddings to those of the classes' descriptions."""

    descriptions: Tensor

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("descriptions", _descriptions(classes), persistent=False)

    def forward(self, pixel_values: Tensor) -> Any:
        """Maps pictures float32 [batch, channels, side, side] -> an object with ``logits`` [batch, classes]."""
        outputs = self.model(input_ids=self.descriptions, pixel_values=pixel_values)
        return ImageClassifierOutput(logits=outputs.logits_per_image)


class Heard(nn.Module):
    """Classifies pictures by a model of speech: as a wave, row after row, or as the spectrogram that it takes."""

    def __init__(self, model: nn.Module, frames: tuple[int, int] | None, mel_first: bool) -> None:
        super().__init__()
        self.model, self.frames, self.mel_first = model, frames, mel_first

    def forward(self, pixel_values: Tensor) -> Any:
        """Maps pictures float32 [batch, channels, side, side] -> an object with ``logits`` [batch, classes]."""
        grey = pixel_values.mean(1)
        if self.frames is None:
            return self.model(grey.flatten(1))
        spectrogram = F.interpolate(grey[:, None], size=self.frames)[:, 0]  # [batch, time, frequency]
        return self.model(spectrogram.mT if self.mel_first else spectrogram)


def two_towers(config: Any, folder: str, side: int, classes: int) -> nn.Module:
    """Builds both towers, for pictures of ``side`` and descriptions of letters. Raises ValueError."""
    texts, pictures = config.text_config, config.vision_config
    texts.vocab_size = max(texts.vocab_size, CHARACTERS)
    texts.pad_token_id, texts.bos_token_id, texts.eos_token_id = PAD, CLS, SEP
    pictures.image_size = side
    return TwoTowers(models.built(AutoModelForZeroShotImageClassification, config, folder), classes)


def speech(config: Any, folder: str, classes: int) -> nn.Module:
    """Builds a model of speech with a head for ``classes``. Raises ValueError.

    It leaves no layer out by chance (LayerDrop): in a step that does, nothing could be seen to act there.
    """
    config.num_labels = classes
    if hasattr(config, "layerdrop"):
        config.layerdrop = 0.0
    model = models.built(AutoModelForAudioClassification, config, folder)
    bands = getattr(config, "num_mel_bins", None)
    if bands is None:
        return Heard(model, None, False)
    time = 2 * config.max_source_positions if hasattr(config, "max_source_positions") else config.max_length
    return Heard(model, (time, bands), hasattr(config, "max_source_positions"))


def _descriptions(classes: int) -> Tensor:
    """Makes a row of tokens for each class, its number in letters: int64 [classes, DESCRIPTION]."""
    letters = CHARACTERS - len(SPECIAL)
    numbers = torch.arange(classes)[:, None] // letters ** torch.arange(DESCRIPTION - 2) % letters
    ends = torch.full((classes, 1), CLS), torch.full((classes, 1), SEP)
    return torch.cat([ends[0], len(SPECIAL) + numbers, ends[1]], dim=1)
