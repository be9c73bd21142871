"""The target's own first layers, with its final norm and head, as a draft: no second model, no training.

Source: the early exits of Elhoushi et al. 2024 (LayerSkip), arXiv 2404.16710; models that were not trained for it
agree with themselves late only.
"""

import copy
from dataclasses import replace
from typing import Any

from torch import nn

from spectune.drafting import Load
from spectune.drafting.draft_model import DraftModel
from spectune.drafting_spec import DraftSpec
from spectune.errors import ConfigError
from spectune.models.loading import LanguageModel

_LAYOUTS = ("model.layers", "transformer.h", "model.language_model.layers")  # Llama, Qwen, Gemma; GPT-2; Gemma 3


def open_layers(draft: DraftSpec, target: LanguageModel, load: Load) -> DraftModel:
    """A draft model that is the target, cut short."""
    del load
    return DraftModel(first_layers(target, draft.layers))


def first_layers(target: LanguageModel, layers: int) -> LanguageModel:
    """The target cut after its first `layers` layers; the weights are the target's own, nothing is copied.

    Raises: ConfigError where it has no more layers than that, or keeps them in a place that is not known.
    """
    path = _layers_path(target)
    stack = target.network.get_submodule(path)
    if not 1 <= layers < len(stack):
        problem = f"layers:{layers} does not cut {target.name}, which has {len(stack)} layers"
        raise ConfigError(problem, f"give layers:1 to layers:{len(stack) - 1}")
    parent, _, name = path.rpartition(".")
    network = _with_submodule(target.network, path, stack[:layers])
    cut: Any = network.get_submodule(parent)
    cut.config = copy.copy(cut.config)
    cut.config.num_hidden_layers = layers
    assert len(getattr(cut, name)) == layers
    return replace(target, name=f"{target.name}, first {layers} layers", network=network)


def _layers_path(target: LanguageModel) -> str:
    for path in _LAYOUTS:
        module: object = target.network
        for name in path.split("."):
            module = getattr(module, name, None)
        if isinstance(module, nn.ModuleList):
            return path
    problem = f"{target.name} ({type(target.network).__name__}) keeps its layers in a place that is not known"
    raise ConfigError(problem, "layer skip works for Llama, Qwen, Gemma and GPT-2 layouts; use another draft")


def _with_submodule(module: nn.Module, path: str, replacement: nn.Module) -> nn.Module:
    """A shallow copy whose submodule at `path` is another one; every module on the way is copied, no weight is."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    name, _, rest = path.partition(".")
    twin._modules[name] = _with_submodule(module.get_submodule(name), rest, replacement) if rest else replacement
    return twin
