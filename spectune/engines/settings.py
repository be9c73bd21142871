"""Settings of an engine as a user writes them, KEY=VALUE, under the names that the engines' rules look for."""

from collections.abc import Mapping, Sequence

from spectune.choice import LONGEST
from spectune.engines.engine import Engine
from spectune.engines.preflight import is_count
from spectune.errors import ConfigError, may_hold_secrets

_K_SETTINGS = ("num_speculative_tokens", "speculative_num_steps", "max_draft_len", "spec_draft_n_max")
_K_ALONE = ("num_speculative_tokens", "spec_draft_n_max")  # which say nothing but K
_OF_THE_DRAFT = ("speculative_config.", "sc.")
_OF_BOTH = ("max_model_len", "tensor_parallel_size")  # which the target has too
_MOST, _MOST_PARTS = 1 << 48, 10_000
_AS_IN_CONFIG = "write it as in the engine's config"


def read_settings(texts: Sequence[str]) -> dict[str, object]:
    """By name, the last of a name counting.

    Raises: ConfigError for what is no setting, or has a value that no engine takes.
    """
    return {name: value for text in texts for name, value in _named(*_setting(text))}


def in_full(settings: Mapping[str, object], engine: Engine) -> dict[str, object]:
    """Under the long names of that engine's options."""
    return {engine.in_full.get(name, name): value for name, value in settings.items()}


def without_depth(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings but for those that say nothing but K."""
    return {name: value for name, value in settings.items() if name not in _K_ALONE}


def depth(num_speculative_tokens: int | None, settings: Mapping[str, object]) -> int | None:
    """K, as the option and any of the settings give it. Raises: ConfigError where they differ, or it is none."""
    given = {f"--set {name}": settings[name] for name in _K_SETTINGS if name in settings}
    given |= {} if num_speculative_tokens is None else {"-k": num_speculative_tokens}
    for name, value in given.items():
        if not is_count(value) or not 1 <= value <= LONGEST:
            raise ConfigError(f"K is {str(value)[:20]} by {name}", f"give a whole number from 1 to {LONGEST:,}")
    if len(set(given.values())) > 1:
        twice = ", ".join(f"{name} {value}" for name, value in given.items())
        raise ConfigError(f"K is given twice: {twice}", "give one")
    return next((value for value in given.values() if is_count(value)), None)


def _setting(text: str) -> tuple[str, object]:
    """A key and its value; a key alone is a flag, set."""
    import yaml

    key, separator, written = text.partition("=")
    if not separator:
        key, _, written = text.strip().partition(" ")
    name = key.strip().lstrip("-").replace("-", "_")
    if not name or not name.isprintable() or may_hold_secrets(name):
        raise ConfigError(f"--set {text[:60]!r} is not understood", "write --set tensor_parallel_size=4")
    try:
        value = yaml.safe_load(written) if written.strip() else True
    except Exception as error:  # its constructors meet hostile text with any error
        raise ConfigError(f"--set {name} has a value that is no YAML", _AS_IN_CONFIG) from error
    _require_sane(name, value)
    return name, value


def _require_sane(name: str, value: object) -> None:
    """No value that grows out of its text, refers to itself, or that no terminal could show."""
    left, parts = [value], 0
    while left:
        part, parts = left.pop(), parts + 1
        left += [*part.keys(), *part.values()] if isinstance(part, dict) else part if isinstance(part, list) else []
        huge = isinstance(part, int | float) and not abs(part) < _MOST
        odd = isinstance(part, str) and (not part.isprintable() or may_hold_secrets(part))
        if parts > _MOST_PARTS or huge or odd:
            raise ConfigError(f"--set {name} has a value that no engine takes", _AS_IN_CONFIG)


def _named(name: str, value: object) -> list[tuple[str, object]]:
    """As the rules look for it; settings of a speculative_config that is given whole, each for itself."""
    for prefix in _OF_THE_DRAFT:
        if name == prefix[:-1] and isinstance(value, dict):
            whole = _OF_THE_DRAFT[0]
            return [setting for key, inner in value.items() for setting in _named(f"{whole}{key}", inner)]
        short = name.removeprefix(prefix)
        if short != name:
            return [(f"{_OF_THE_DRAFT[0]}{short}" if short in _OF_BOTH else short, value)]
    return [(name, value)]
