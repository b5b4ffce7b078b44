"""Puts a user's own model in the place of a baseline's: any Hugging Face configuration with the head that the task
needs.

Only the configuration is read. The model is freshly initialised, and no code beside it is run.
"""

from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from baselines.text import PAD, SEP
from suite.model.attributes import check_config
from suite.record.files import object_of
from suite.record.text import reason, understood

UNBUILT = (TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError, ImportError)
"""What a library raises of a configuration that it reads and cannot build. A RuntimeError may come of tensors without
values, which a real run does not have."""


def configuration(folder: str, fitting: Container[type], task: str) -> PreTrainedConfig:
    """Reads ``folder``/config.json, which must be of a class in ``fitting``: those with a head for ``task``.

    Raises FileNotFoundError where there is none, ValueError where it cannot do the task or needs its own code.
    """
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"--model {folder}: no config.json there; give a Hugging Face configuration folder")
    with understood(folder, "cannot read config.json"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        check_config(config)
    if type(config) not in fitting:
        raise ValueError(f"--model {folder}: a {config.model_type!r} model has no {task} head; choose another")
    config.architectures = config.architectures or []  # transformers (5.23) walks the list where a type has two heads
    return config


def contents(folder: str) -> dict[str, Any]:
    """Reads ``folder``/config.json as it stands; {} where it is no JSON object."""
    with suppress(OSError, ValueError):
        return object_of(Path(folder).expanduser() / "config.json")
    return {}


def built(auto: Any, config: PreTrainedConfig, folder: str) -> nn.Module:
    """Builds the model of ``config`` with the head of transformers' class ``auto``. Raises ValueError where it has
    none."""
    try:
        model: nn.Module = auto.from_config(config)
    except UNBUILT as error:
        raise ValueError(f"--model {folder}: transformers cannot build it: {reason(error)}") from error
    except RuntimeError as error:
        if "negative dimension" not in str(error):
            raise
        raise ValueError(f"--model {folder}: transformers cannot build it: {reason(error)}") from error
    return model


def text_model(auto: Any, config: PreTrainedConfig, folder: str, vocabulary: int, length: int) -> nn.Module:
    """Builds the model as :func:`built`, with room for every token and position of the data, and the data's special
    tokens."""
    model = built(auto, fit_text(config, vocabulary, length), folder)
    first = _first_position(model, config)
    if first and config.max_position_embeddings < length + first:
        config.max_position_embeddings = length + first
        model = built(auto, config, folder)
    return model


def fit_text(config: PreTrainedConfig, vocabulary: int, length: int) -> PreTrainedConfig:
    """Returns ``config``, in place, with room for every token, and for ``length`` positions from 0 on."""
    config.vocab_size = max(config.vocab_size, vocabulary)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < length:
        config.max_position_embeddings = length
    config.pad_token_id = PAD
    config.bos_token_id = config.eos_token_id = SEP
    config.use_cache = False
    return config


def _first_position(model: nn.Module, config: PreTrainedConfig) -> int:
    """Returns the position of a row's first token: in RoBERTa's family the one after the padding's own, elsewhere 0.

    A table of positions with a row for padding is how those models say so.
    """
    rows = getattr(config, "max_position_embeddings", None)
    tokens = model.get_input_embeddings() if isinstance(model, PreTrainedModel) else None
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and module is not tokens]
    padding = [table.padding_idx for table in tables if table.num_embeddings == rows and table.padding_idx is not None]
    return max(padding) + 1 if padding else 0


class Denoising(nn.Module):
    """Runs an encoder-decoder as a masked language model (BART, arXiv 1910.13461, section 2.2): the encoder reads the
    masked row, the decoder what stands before each token in it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Any:
        """Maps ``input_ids`` int64 [batch, length] -> outputs with ``logits`` [batch, length, vocabulary]."""
        before = input_ids.roll(1, dims=1)
        before[:, 0] = SEP
        return self.model(input_ids=input_ids, decoder_input_ids=before)
