"""Drafting methods, a row each, and draft SPECs as the user writes them: `ngram:min=1,max=4`, `eagle3:MODEL`, a model.

No other room, engines apart, asks for a method by its name: each asks for the property that it depends on.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spectune.errors import ConfigError, may_hold_secrets

DEFAULT_DRAFT = "ngram:min=1,max=4"
MOST_BRANCHES = 16

AcceptanceRule = Literal["rejection", "greedy_draft", "exact_match", "block"]
"""rejection: sampled draft, accept where r < p/q. greedy_draft: the draft proposes its argmax (or is a
point mass); accept where the target's own sample is the proposal. exact_match: sampled draft, accept where
two independent samples agree. block: block verification of a sampled draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpec:
    """A way to draft: `model` for those that load one, bounds for n-gram, `layers` for layer skip."""

    method: str
    text: str  # as it is written, with its defaults
    model: str | None = None
    min_tokens: int = 0
    max_tokens: int = 0
    branches: int = 1
    layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What sets a drafting method apart, for all who measure, price or choose drafts."""

    prefix: str | None  # of its SPECs; None for what names a model, and for what another's options make of it
    rule: AcceptanceRule  # of its proposals in spectune's own loop
    evidence: Literal[
        "position", "start", "tree"
    ]  # what is proposed depends on the text so far only, or on the round's
    # start; a tree of K proposals depends on K too
    cost: Literal["step", "round"]  # proposing takes a forward for each token, or once a round
    simplicity: int  # of drafts as fast as each other the least is recommended
    weights: Literal["none", "target", "own"]  # that it drafts with
    opener: str | None  # module:function(spec, target, load) → its drafter; None: spectune cannot measure it yet
    read: Callable[[str, str], DraftSpec]  # the SPEC, and what stands behind its colon


def method_of(spec: str) -> Method:
    """The row of a SPEC's method. Raises: ConfigError as draft_spec."""
    return METHODS[draft_spec(spec).method]


def draft_spec(spec: str) -> DraftSpec:
    """Raises: ConfigError for what is not understood, or could not stand on a command line."""
    _require_name(spec)
    name, colon, rest = spec.partition(":")
    prefixes = {method.prefix: method for method in METHODS.values() if method.prefix}
    if name in prefixes and (colon or name != _LAYERS):
        return prefixes[name].read(spec, rest)
    if colon and "/" not in name and "\\" not in rest:
        known = ", ".join(prefixes)
        raise ConfigError(f"draft method {name!r} is not known", f"give one of {known}, or ./{spec} for a path")
    return _model(spec, rest)


def measured_draft(spec: str) -> DraftSpec:
    """A draft that can be profiled. Raises: ConfigError for others."""
    draft = draft_spec(spec)
    if METHODS[draft.method].opener is None:
        problem = f"draft {spec!r} cannot be profiled: spectune measures draft models, n-gram and layer skip"
        raise ConfigError(problem, f"spectune doctor --draft {spec} tells whether an engine would run it")
    near = difflib.get_close_matches(spec, [method.prefix for method in METHODS.values() if method.prefix], 1, 0.8)
    if draft.model == spec and near and not Path(spec).exists():
        raise ConfigError(f"there is no model {spec!r} here", f"did you mean {near[0]}? write ./{spec} for a folder")
    return draft


def _require_name(spec: str) -> None:
    if may_hold_secrets(spec):
        raise ConfigError("the draft looks like a URL with credentials", "give a model's name or path")
    if not spec or not spec.isprintable():
        raise ConfigError(f"draft {spec!r} is no name", "give a model, ngram, layers:N or another method")
    if spec.startswith("-"):
        raise ConfigError(f"draft {spec!r} looks like an option", f"write ./{spec} for a path")


def _is_small(text: str) -> bool:
    return text.isdecimal() and len(text) <= 6


def _model(spec: str, rest: str) -> DraftSpec:
    del rest
    return DraftSpec(method="draft_model", text=spec, model=spec)


def _layers(spec: str, rest: str) -> DraftSpec:
    if not _is_small(rest) or int(rest) < 1:
        raise ConfigError(f"draft {spec!r} is not understood at {rest!r}", "write layers:20, a number of layers")
    return DraftSpec(method="layer_skip", text=f"layers:{int(rest)}", layers=int(rest))


def _ngram(spec: str, rest: str) -> DraftSpec:
    """As in vLLM, one bound that is left out copies the other; plain `ngram` is min=1,max=4."""
    bounds: dict[str, int] = {}
    for part in rest.split(",") if rest else []:
        key, _, value = part.partition("=")
        if key not in ("min", "max", "branches") or not _is_small(value) or key in bounds:
            raise ConfigError(f"draft {spec!r} is not understood at {part!r}", f"write {DEFAULT_DRAFT}")
        bounds[key] = int(value)
    branches = bounds.pop("branches", 1)
    if not 1 <= branches <= MOST_BRANCHES:
        problem = f"draft {spec!r} has {branches} branches"
        raise ConfigError(problem, f"give 1 to {MOST_BRANCHES}, as in {DEFAULT_DRAFT},branches=4")
    given = next(iter(bounds.values()), None)
    low, high = (1, 4) if given is None else (bounds.get("min", given), bounds.get("max", given))
    if not 1 <= low <= high:
        raise ConfigError(
            f"draft {spec!r} looks up {low} to {high} tokens", f"give 1 ≤ min ≤ max, as in {DEFAULT_DRAFT}"
        )
    text = f"ngram:min={low},max={high}" + (f",branches={branches}" if branches > 1 else "")
    method = "ngram_tree" if branches > 1 else "ngram"
    return DraftSpec(method=method, text=text, min_tokens=low, max_tokens=high, branches=branches)


def _head(method: str) -> Callable[[str, str], DraftSpec]:
    """A method that needs a checkpoint of its own."""

    def read(spec: str, rest: str) -> DraftSpec:
        if not rest:
            remedy = f"write {method}:MODEL, or ./{spec} for a folder"
            raise ConfigError(f"draft {spec!r} names no checkpoint", remedy)
        return DraftSpec(method=method, text=f"{method}:{rest}", model=rest)

    return read


def _mtp(spec: str, rest: str) -> DraftSpec:
    """The target's own heads; a checkpoint that holds them apart may be named."""
    return DraftSpec(method="mtp", text="mtp") if spec == "mtp" else _head("mtp")(spec, rest)


def _suffix(spec: str, rest: str) -> DraftSpec:
    if spec == "suffix":
        return DraftSpec(method="suffix", text="suffix")
    raise ConfigError(f"draft {spec!r} is not understood at {rest!r}", "write suffix")


_LAYERS = "layers"  # without a colon it may be a folder's name

# fmt: off
METHODS: dict[str, Method] = {
    "ngram": Method(prefix="ngram", rule="greedy_draft", evidence="start", cost="round", simplicity=0, weights="none",
                    opener="spectune.drafting.ngram:open_ngram", read=_ngram),
    "ngram_tree": Method(prefix=None, rule="greedy_draft", evidence="tree", cost="round", simplicity=1, weights="none",
                         opener="spectune.drafting.ngram:open_ngram", read=_ngram),
    "layer_skip": Method(prefix=_LAYERS, rule="rejection", evidence="position", cost="step", simplicity=2,
                         weights="target", opener="spectune.drafting.layer_skip:open_layers", read=_layers),
    "draft_model": Method(prefix=None, rule="rejection", evidence="position", cost="step", simplicity=4, weights="own",
                          opener="spectune.drafting.draft_model:open_model", read=_model),
    "eagle": Method(prefix="eagle", rule="greedy_draft", evidence="start", cost="step", simplicity=6, weights="own",
                    opener=None, read=_head("eagle")),
    "eagle3": Method(prefix="eagle3", rule="greedy_draft", evidence="start", cost="step", simplicity=7, weights="own",
                     opener=None, read=_head("eagle3")),
    "medusa": Method(prefix="medusa", rule="greedy_draft", evidence="start", cost="round", simplicity=5, weights="own",
                     opener=None, read=_head("medusa")),
    "mtp": Method(prefix="mtp", rule="greedy_draft", evidence="start", cost="step", simplicity=3, weights="target",
                  opener=None, read=_mtp),
    "suffix": Method(prefix="suffix", rule="greedy_draft", evidence="start", cost="round", simplicity=1, weights="none",
                     opener=None, read=_suffix),
}
# fmt: on
