"""Reads a user's own checkpoint: a folder as Hugging Face's ``save_pretrained`` writes it, config.json beside
safetensors.

Only whole files are used: a safetensors file begins with the places of its tensors, so that a truncated one is known by
its size. Tensors are told by name, with or without the base model's prefix (``bert.``). The blocks must all be there
with their shapes; what stands around them, a head for another task or a table of another size, may begin afresh.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from suite.model.anatomy import anatomy
from suite.record.files import json_of, object_of
from suite.record.text import printable, understood

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
UNSAFE = ("pytorch_model.bin", "pytorch_model.bin.index.json")
HEADER_LIMIT_BYTES = 100_000_000  # the format's own
NAMED = 3  # tensors that a sentence names
AGAIN = "the download is not complete: fetch the folder again, with `hf download` for one, which resumes"
OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # of norms, in checkpoints of BERT's first years


class TensorInFile(NamedTuple):
    """Holds a tensor's file and shape."""

    file: Path
    shape: tuple[int, ...]


def weight_files(folder: str | Path) -> list[Path]:
    """Returns the whole weight files of a checkpoint; none where the folder has a configuration alone.

    Raises ValueError, with what to do, where one is missing, truncated or of a format that may run code.
    """
    path = Path(folder).expanduser()
    if (path / SINGLE).exists():
        return [path / SINGLE]
    if (path / INDEX).exists():
        try:
            shards = sorted(set(object_of(path / INDEX)["weight_map"].values()))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise ValueError(f"--model {folder}: cannot read {INDEX}: {AGAIN}") from None
        if not shards:
            raise ValueError(f"--model {folder}: {INDEX} names no weight file: {AGAIN}")
        if foreign := [shard for shard in shards if not isinstance(shard, str) or Path(shard).name != shard]:
            raise ValueError(
                f"--model {folder}: {INDEX} names {printable(str(foreign[0]))}, which is no file beside it"
            )
        if missing := [shard for shard in shards if not (path / shard).is_file()]:
            raise ValueError(
                f"--model {folder}: {len(missing)} of {len(shards)} weight files are missing, {printable(missing[0])} "
                f"for one: {AGAIN}"
            )
        return [path / shard for shard in shards]
    if begun := [file.name for file in path.glob("*.safetensors*")]:
        raise ValueError(f"--model {folder}: {printable(begun[0])} is there, but neither {SINGLE} nor {INDEX}: {AGAIN}")
    if unsafe := [name for name in UNSAFE if (path / name).exists()]:
        raise ValueError(
            f"--model {folder}: {unsafe[0]} may hold code and is not read: load it in transformers and write it again "
            "with save_pretrained, which makes safetensors"
        )
    return []


def stored_tensors(folder: str | Path) -> dict[str, TensorInFile]:
    """Returns the place of every tensor of a checkpoint by name. Raises ValueError where a file is not whole."""
    from safetensors import safe_open  # it comes with the models' libraries

    known: dict[str, TensorInFile] = {}
    for file in weight_files(folder):
        shapes = _header(folder, file)
        with understood(folder, f"cannot read {file.name}"), safe_open(file, framework="np"):
            pass  # it looks at types and sizes of all tensors
        known |= {name: TensorInFile(file, shape) for name, shape in shapes.items()}
    return known


def _header(folder: str | Path, file: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a file's tensors, read off its header. It is an 8-byte length, as much JSON, then the
    tensors' bytes to its end."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        beginning = opened.read(8)
        length = struct.unpack("<Q", beginning)[0] if len(beginning) == 8 else 0
        whole = 0 < length <= min(size - 8, HEADER_LIMIT_BYTES)
        try:
            header = json_of(opened.read(length)) if whole else {}
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            ends = [_numbers(entry["data_offsets"])[1] for entry in tensors.values()]
            shapes = {name: _numbers(entry["shape"]) for name, entry in tensors.items()}
        except (ValueError, LookupError, TypeError, AttributeError):
            whole = False
    if not whole or not tensors or size != 8 + length + max(ends):
        raise ValueError(f"--model {folder}: {printable(file.name)} is cut off or damaged ({size} bytes): {AGAIN}")
    return shapes


def _numbers(value: object) -> tuple[int, ...]:
    """Returns a list of sizes as a tuple. Raises TypeError for anything else that JSON has."""
    if not isinstance(value, list) or any(type(each) is not int or not 0 <= each < 2**63 for each in value):
        raise TypeError(f"{value!r} is no list of sizes")
    return tuple(value)


def fitted(folder: str | Path, model: nn.Module) -> dict[str, str]:
    """Returns the name that the checkpoint has for each parameter of ``model`` in its shape for it.

    Raises ValueError for a checkpoint of another architecture: a parameter of a block is missing, or of another shape.
    """
    saved = stored_tensors(folder)
    by_name = _names(saved)
    fitting: dict[str, str] = {}
    own = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in own.items():
        theirs = next((by_name[spelling] for spelling in _spellings(name) if spelling in by_name), None)
        if theirs is not None and saved[theirs].shape == tuple(parameter.shape):
            fitting[name] = theirs
    present = {id(own[name]) for name in fitting}
    blocks = tuple(f"{stack.path}." for stack in anatomy(model).stacks)
    inside = [name for name in own if name.startswith(blocks)]
    if missing := [name for name in inside if id(own[name]) not in present]:
        raise ValueError(
            f"--model {folder}: its weights are of another architecture than its config.json says: "
            f"{len(missing)} of {len(inside)} parameters of the blocks are missing or of another shape, "
            f"{_listed(missing)}; take config.json and weights from one place"
        )
    return fitting


def _names(saved: Mapping[str, TensorInFile]) -> dict[str, str]:
    """Returns the checkpoint's names by every spelling under which a model may have them."""
    known: dict[str, str] = {}
    for name in saved:
        head, _, last = name.rpartition(".")
        modern = f"{head}.{OLD_NAMES[last]}" if last in OLD_NAMES else name
        for spelling in (name, *_spellings(modern)):
            known.setdefault(spelling, name)
    return known


def _spellings(name: str) -> tuple[str, ...]:
    """Returns a parameter's name, and that without the base model's prefix."""
    _, _, rest = name.partition(".")
    return (name, rest) if rest else (name,)


def weights(folder: str | Path, model: nn.Module) -> dict[str, Tensor]:
    """Returns the checkpoint's tensors by the names of ``model``'s parameters. Raises ValueError as :func:`fitted`."""
    from safetensors import safe_open

    fitting, saved = fitted(folder, model), stored_tensors(folder)
    by_file: dict[Path, list[str]] = {}
    for name, theirs in fitting.items():
        by_file.setdefault(saved[theirs].file, []).append(name)
    values: dict[str, Tensor] = {}
    for file, names in by_file.items():
        with safe_open(file, framework="pt") as opened:
            values |= {name: opened.get_tensor(fitting[name]) for name in names}
    return values


def check(folder: str | Path, model: nn.Module) -> None:
    """Raises ValueError as :func:`fitted`, also of a ``model`` without values; warns of what begins afresh."""
    if not weight_files(folder):
        return
    fitting, own = fitted(folder, model), dict(model.named_parameters(remove_duplicate=False))
    present = {id(own[name]) for name in fitting}
    if fresh := [name for name, parameter in model.named_parameters() if id(parameter) not in present]:
        warnings.warn(f"{len(fresh)} parameters are not in {folder} and begin afresh: {_listed(fresh)}", stacklevel=2)


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMED], *(["..."] if len(names) > NAMED else [])])


def content_of(folder: str | Path) -> str:
    """Returns the SHA-256 of a checkpoint's weights."""
    digest = hashlib.sha256()
    for file in weight_files(folder):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()
