"""A user's own model in place of a baseline's: any Hugging Face configuration with the head that the task needs.

Only the configuration is read. The model is freshly initialised, and no code beside it is run.
"""

from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from baselines.text import PAD, SEP


def configuration(folder: str) -> PreTrainedConfig:
    """``folder``/config.json. Raises FileNotFoundError where there is none, ValueError where it needs its own code."""
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"--model {folder}: no config.json there; give a Hugging Face configuration folder")
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--model {folder}: cannot read config.json: {error}") from error


def build(folder: str, config: PreTrainedConfig, auto: Any, task: str) -> nn.Module:
    """A model of ``config`` by ``auto``, an AutoModelFor... class. Raises ValueError without a head for ``task``."""
    if type(config) not in auto._model_mapping:
        raise ValueError(f"--model {folder}: a {config.model_type!r} model has no {task} head; choose another")
    return auto.from_config(config, trust_remote_code=False)


def fit_text(config: PreTrainedConfig, vocabulary: int, length: int) -> PreTrainedConfig:
    """``config``, in place, with room for every token and position of the data, and the data's special tokens."""
    config.vocab_size = max(config.vocab_size, vocabulary)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < length:
        config.max_position_embeddings = length
    config.pad_token_id = PAD
    config.bos_token_id = config.eos_token_id = SEP
    config.use_cache = False
    return config
