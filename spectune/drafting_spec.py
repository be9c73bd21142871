"""Draft SPECs as the user writes them: `ngram:min=1,max=4`, `layers:20`, `eagle3:MODEL`, or what names a model."""

from dataclasses import dataclass
from typing import Literal

from spectune.errors import ConfigError, may_hold_secrets

DEFAULT_DRAFT = "ngram:min=1,max=4"

Method = Literal["draft_model", "layer_skip", "ngram", "suffix", "medusa", "eagle", "eagle3", "mtp"]
_HEADS: tuple[Method, ...] = ("medusa", "eagle", "eagle3")
_OWN: tuple[Method, ...] = ("suffix", "mtp")  # may do without a checkpoint
_MEASURED: tuple[Method, ...] = ("draft_model", "layer_skip", "ngram")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpec:
    """A way to draft: `model` for those that load one, bounds for n-gram, `layers` for layer skip."""

    method: Method
    model: str | None = None
    min_tokens: int = 0
    max_tokens: int = 0
    layers: int = 0

    @property
    def text(self) -> str:
        """As it is written, with its defaults."""
        if self.method == "ngram":
            return f"ngram:min={self.min_tokens},max={self.max_tokens}"
        if self.method == "layer_skip":
            return f"layers:{self.layers}"
        if self.method == "draft_model":
            return str(self.model)
        return self.method if self.model is None else f"{self.method}:{self.model}"


def draft_spec(spec: str) -> DraftSpec:
    """Raises: ConfigError for what is not understood, or could not stand on a command line."""
    _require_name(spec)
    name, colon, rest = spec.partition(":")
    if name == "ngram":
        return _ngram(spec, rest)
    if name == "layers" and colon:
        if not _is_small(rest) or int(rest) < 1:
            raise ConfigError(f"draft {spec!r} is not understood at {rest!r}", "write layers:20, a number of layers")
        return DraftSpec(method="layer_skip", layers=int(rest))
    if spec in _OWN:
        return DraftSpec(method="mtp" if spec == "mtp" else "suffix")
    for method in (*_HEADS, *_OWN):
        if name == method:
            if not rest:
                raise ConfigError(
                    f"draft {spec!r} names no checkpoint", f"write {method}:MODEL, or ./{spec} for a folder"
                )
            if method == "suffix":
                raise ConfigError(f"draft {spec!r} is not understood at {rest!r}", "write suffix")
            return DraftSpec(method=method, model=rest)
    if colon and "/" not in name and "\\" not in rest:
        known = "ngram, layers, eagle, eagle3, medusa, mtp, suffix"
        raise ConfigError(f"draft method {name!r} is not known", f"give one of {known}, or ./{spec} for a path")
    return DraftSpec(method="draft_model", model=spec)


def _require_name(spec: str) -> None:
    if may_hold_secrets(spec):
        raise ConfigError("the draft looks like a URL with credentials", "give a model's name or path")
    if not spec or not spec.isprintable():
        raise ConfigError(f"draft {spec!r} is no name", "give a model, ngram, layers:N or another method")
    if spec.startswith("-"):
        raise ConfigError(f"draft {spec!r} looks like an option", f"write ./{spec} for a path")


def _is_small(text: str) -> bool:
    return text.isdecimal() and len(text) <= 6


def measured_draft(spec: str) -> DraftSpec:
    """A draft that can be profiled. Raises: ConfigError for others."""
    draft = draft_spec(spec)
    if draft.method not in _MEASURED:
        problem = f"draft {spec!r} cannot be profiled: spectune measures draft models, n-gram and layer skip"
        raise ConfigError(problem, f"spectune doctor --draft {spec} tells whether an engine would run it")
    return draft


def _ngram(spec: str, options: str) -> DraftSpec:
    """As in vLLM, one bound that is left out copies the other; plain `ngram` is min=1,max=4."""
    bounds: dict[str, int] = {}
    for part in options.split(",") if options else []:
        key, _, value = part.partition("=")
        if key not in ("min", "max") or not _is_small(value) or key in bounds:
            raise ConfigError(f"draft {spec!r} is not understood at {part!r}", f"write {DEFAULT_DRAFT}")
        bounds[key] = int(value)
    given = next(iter(bounds.values()), None)
    low, high = (1, 4) if given is None else (bounds.get("min", given), bounds.get("max", given))
    if not 1 <= low <= high:
        raise ConfigError(
            f"draft {spec!r} looks up {low} to {high} tokens", f"give 1 ≤ min ≤ max, as in {DEFAULT_DRAFT}"
        )
    return DraftSpec(method="ngram", min_tokens=low, max_tokens=high)
