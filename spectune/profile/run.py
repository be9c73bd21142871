"""What `spectune profile` is asked for, every option of it as a value: from the command line, or a run file."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from spectune.errors import ConfigError, reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The options of `spectune profile` under their own names, with their defaults; also the keys of a run file."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    target: str | None = None
    draft: list[str] = field(default_factory=list)
    workload: str = "builtin"
    temperature: list[float] = field(default_factory=list)
    max_k: int = 8
    max_new_tokens: int = 64
    limit_tokens: int | None = None
    batch: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    budget_s: float = 60.0
    quick: bool = False
    tape: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    no_text: bool = False
    trust_remote_code: bool = False
    max_regression: dict[str, float] = field(default_factory=dict)
    output: str | None = None


_LISTS = ("draft", "temperature", "batch", "context")  # one value that stands there is a list of it
MAX_REGRESSION = 0.05
"""The change for the worse, as a share, that a check lets pass where `max_regression` names no other."""

QUICK: dict[str, Any] = {"temperature": [0.0], "max_k": 4, "max_new_tokens": 32, "budget_s": 30.0}
"""What `quick` stands for, where nothing else is asked for: two minutes on two cores with the embedded target."""


def read_run(path: Path | None, options: Mapping[str, Any], tape: Mapping[str, Any] | None = None) -> Run:
    """The run of a file, with the options that were given in its stead, over what a `tape` was recorded with.

    Raises: ConfigError naming key and remedy.
    """
    from pydantic import TypeAdapter, ValidationError

    given = {**(_run_file(path) if path else {}), **options}
    try:
        return TypeAdapter(Run).validate_python({**(QUICK if given.get("quick") else {}), **(tape or {}), **given})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        where = f"run file {path}: {key}" if path else key
        raise ConfigError(f"{where}: {first['msg'].lower()}", "see spectune profile --help") from error


def differences(one: Run, other: Run) -> list[str]:
    """What two runs would measure differently, as `name (ours, theirs)`; where to save is no difference."""
    ours, theirs = asdict(one), asdict(other)
    return [
        f"{name} ({_shown(ours[name])}, now {_shown(theirs[name])})"
        for name in ours
        if ours[name] != theirs[name] and name not in ("output", "trust_remote_code", "max_regression")
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "default"
    return "default" if value is None else str(value)


def _run_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"run file {path} cannot be read: {reason_of(error)}", "give a YAML file") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"run file {path} is not YAML: {reason}", "write lines such as max_k: 8") from error
    if not isinstance(value, dict):
        raise ConfigError(f"run file {path} holds no keys", "write lines such as max_k: 8")
    options = {str(key).replace("-", "_"): item for key, item in value.items()}
    names = [one.name for one in fields(Run)]
    for key in options:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(names)}"
            raise ConfigError(f"run file {path} has an unknown key {key!r}", remedy)
    return {key: [item] if key in _LISTS and not isinstance(item, list) else item for key, item in options.items()}
