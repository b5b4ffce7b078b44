"""Writes the few lines of a loop that train a model of yours with a stack: what ``leantrain apply`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from leantrain.applying import check, check_acting
from suite.entries.checkpoints import weight_files
from suite.entries.locations import check_configuration
from suite.entries.together import built
from suite.loop.technique import overrides
from suite.model.anatomy import anatomy
from suite.model.attributes import check_config, check_numbers
from suite.record.files import object_of
from suite.record.job import canonical
from suite.record.text import understood

LOADERS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "MASKED_LM": "AutoModelForMaskedLM",
    "SEQUENCE_CLASSIFICATION": "AutoModelForSequenceClassification",
    "IMAGE_CLASSIFICATION": "AutoModelForImageClassification",
    "SEQ_TO_SEQ_CAUSAL_LM": "AutoModelForSeq2SeqLM",
    "PRETRAINING": "AutoModelForPreTraining",
}
"""transformers' mappings of architectures, and the classes that load them."""

TIMM = "import itertools\n\nimport timm\n\nimport leantrain"
"""What a script of a timm model imports."""

SCRIPT = '''"""Trains {model} with {stack}. Written by: leantrain apply -t {stack} --model {model}"""

{imports}

STACK = {stack!r}
MODEL = {model!r}


def begin(batch, steps, learning_rate=1e-4):
    """The model, the stack's optimizer and the context of its steps; ``batch`` is one that you train on."""
    model = {loaded}
    return leantrain.apply(model, STACK, batch=batch, steps=steps, learning_rate=learning_rate)


def train_step(model, optimizer, context, batch):
    """One step on a batch, {form}; returns its loss."""
{step}


def train(loader, steps, learning_rate=1e-4):
    """``steps`` steps over a loader of yours; returns the model to keep, and what a later run goes on from."""
    model, optimizer, context = begin(next(iter(loader)), steps, learning_rate)
    while (before := context.finished) < steps:
        for batch in itertools.islice(loader, steps - before):
            train_step(model, optimizer, context, batch)
        if context.finished == before:
            raise ValueError(f"the loader ended after {{before}} of {{steps}} steps: give a list or a DataLoader")
    with context.evaluated() as evaluated:
        return evaluated, context.state_dict()
'''

UPDATE = "    return context.update(batch)"
STEP = """    with context.step(batch):
        {passed}{added}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()"""


class Source(NamedTuple):
    """Says how a script gets its model: what it imports, the expression, and what its batches are."""

    imports: str
    loaded: str
    pair: bool  # pictures and classes, in place of a mapping with labels


def script(stack: str, model: str) -> str:
    """Writes a script that trains ``model``, a Hugging Face or timm folder or a timm model's name, with ``stack``.

    Raises UnknownId, StackError for techniques that exclude one another or have no meaning there, OSError where there
    is no such folder, ValueError for a model that cannot be built or has no Transformer blocks.
    """
    check(stack)
    technique = built(stack)
    check_acting(technique)
    source = source_of(model)
    filled = [each for each in technique.techniques.values() if not each.is_reference]
    updates, adds = (any(overrides(each, name) for each in filled) for name in ("update", "loss"))
    form = "(pictures, classes)" if source.pair else "tensors by the model's names for them, with labels"
    passed = "outputs = model(**batch)\n        loss = outputs.loss"
    if source.pair:
        passed = "pictures, classes = batch\n        outputs = model(pictures)\n"
        passed += "        loss = F.cross_entropy(outputs, classes)"
    added = "\n        loss = context.loss(loss, outputs, batch)" if adds else ""
    step = UPDATE if updates else STEP.format(passed=passed, added=added)
    imports = source.imports
    if source.pair and not updates:
        imports = imports.replace("import timm\n", "import timm\nimport torch.nn.functional as F\n")
    return SCRIPT.format(
        model=model, stack=canonical(stack), imports=imports, loaded=source.loaded, form=form, step=step
    )


def source_of(model: str) -> Source:
    """Finds how ``model`` is loaded; it is built once, without memory, to see that it has blocks."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if not timm_has(model):
            raise FileNotFoundError(f"--model {model}: no such folder, and timm has no model of that name")
        return _timm(model)
    config = _configuration(folder)
    if "architecture" in config:
        return _timm_folder(folder, config)
    check_configuration(model)
    return _transformers(folder, config.get("architectures") or [])


def _configuration(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"--model {folder}: no config.json there; give a Hugging Face or timm folder")
    with suppress(ValueError):
        return object_of(path)
    raise ValueError(f"--model {folder}: config.json is no JSON object; give a Hugging Face or timm folder")


def _timm(name: str) -> Source:
    with understood(name, "timm cannot build it"), torch.device("meta"):
        model = timm_model(name)
    anatomy(model)
    return Source(TIMM, f"timm.create_model({name!r}, pretrained=True)", pair=True)


def _timm_folder(folder: Path, config: Mapping[str, Any]) -> Source:
    """Loads by its weights where it has any, else by its architecture with the arguments that it names."""
    name, arguments = config["architecture"], config.get("model_args") or {}
    if not isinstance(name, str) or not timm_has(name):
        raise ValueError(f"--model {folder}: timm has no model of the name {name!r}")
    if not isinstance(arguments, dict) or not all(map(str.isidentifier, arguments)):
        raise ValueError(f"--model {folder}: model_args in config.json names no arguments")
    with understood(folder, "timm cannot build it"), torch.device("meta"):
        check_numbers(arguments)
        model = timm_model(name, **arguments)
    anatomy(model)
    if weight_files(folder):
        return Source(TIMM, f"timm.create_model({f'local-dir:{folder}'!r}, pretrained=True)", pair=True)
    given = "".join(f", {key}={value!r}" for key, value in arguments.items())
    return Source(TIMM, f"timm.create_model({name!r}, pretrained=False{given})", pair=True)


def timm_has(name: str) -> bool:
    """Tells whether timm has a model of that name."""
    import timm

    return bool(timm.is_model(name))


def timm_model(name: str, **arguments: Any) -> torch.nn.Module:
    """Builds timm's model, freshly initialised."""
    import timm

    model: torch.nn.Module = timm.create_model(name, pretrained=False, **arguments)
    return model


def _transformers(folder: Path, architectures: list[str]) -> Source:
    import transformers
    from transformers.models.auto import modeling_auto

    with understood(folder, "cannot read config.json"):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        check_config(config)
    if not isinstance(architectures, list) or not all(isinstance(each, str) for each in architectures):
        raise ValueError(f"--model {folder}: architectures in config.json is no list of names")
    kinds = {loader: getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES") for kind, loader in LOADERS.items()}
    named = [loader for loader, names in kinds.items() if set(architectures) & set(names.values())]
    able = named or [loader for loader, names in kinds.items() if config.model_type in names]
    if not able:
        raise ValueError(f"--model {folder}: a {config.model_type!r} model has no head that gives a loss")
    with understood(folder, "transformers cannot build it"), torch.device("meta"):
        built_once = getattr(transformers, able[0]).from_config(config)
    anatomy(built_once)
    whole = f"{able[0]}.from_pretrained(MODEL)"
    fresh = f"{able[0]}.from_config(AutoConfig.from_pretrained(MODEL))"
    weights = weight_files(folder)
    classes = able[0] if weights else f"AutoConfig, {able[0]}"
    imports = f"import itertools\n\nfrom transformers import {classes}\n\nimport leantrain"
    return Source(imports, whole if weights else fresh, pair=False)
