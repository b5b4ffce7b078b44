"""A user's own model in place of a baseline's: any Hugging Face configuration with the head that the task needs.

Only the configuration is read. The model is freshly initialised, and no code beside it is run.
"""

from collections.abc import Container
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from baselines.text import PAD, SEP


def configuration(folder: str, fitting: Container[type], task: str) -> PreTrainedConfig:
    """``folder``/config.json, which must be of a class in ``fitting``: those with a head for ``task``.

    Raises FileNotFoundError where there is none, ValueError where it cannot do the task or needs its own code.
    """
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"--model {folder}: no config.json there; give a Hugging Face configuration folder")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--model {folder}: cannot read config.json: {error}") from error
    if type(config) not in fitting:
        raise ValueError(f"--model {folder}: a {config.model_type!r} model has no {task} head; choose another")
    return config


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
