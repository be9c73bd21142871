"""Whether an engine would run a target with a draft: its adapter's findings, and what goes for every engine.

Settings come as a user writes them, KEY=VALUE, and go under the names that the engines' rules look for.
"""

from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spectune.checkpoints.facts import model_facts
from spectune.choice import LONGEST
from spectune.drafting_spec import draft_spec
from spectune.engines.catalogue import EngineVersion, engine_named
from spectune.engines.preflight import CONTEXT, Finding, Plan, info, is_count, warning
from spectune.errors import ConfigError, may_hold_secrets

_K_SETTINGS = ("num_speculative_tokens", "speculative_num_steps", "max_draft_len", "spec_draft_n_max")
_K_ALONE = ("num_speculative_tokens", "spec_draft_n_max")  # which say nothing but K
_OF_THE_DRAFT = ("speculative_config.", "sc.")
_OF_BOTH = ("max_model_len", "tensor_parallel_size")  # which the target has too
_MOST, _MOST_PARTS = 1 << 48, 10_000
_AS_IN_CONFIG = "write it as in the engine's config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What stands in the way comes first among the findings."""

    verdict: Literal["impossible", "ok"]
    findings: list[Finding]


def diagnose(target: str, draft: str, engine: str, k: int | None, settings: Sequence[str]) -> Diagnosis:
    """Of models by name, a draft by its SPEC, settings as KEY=VALUE. Raises: ConfigError for what cannot be read."""
    given = {name: value for text in settings for name, value in _named(*_setting(text))}
    served = engine_named(engine)
    named = {served.engine.in_full.get(name, name): value for name, value in given.items()}
    k, spec = _depth(k, named), draft_spec(draft)
    plan = Plan(
        target=model_facts(target),
        draft=spec,
        model=None if spec.model is None else model_facts(spec.model),
        num_speculative_tokens=k,
        settings={name: value for name, value in named.items() if name not in _K_ALONE},
    )
    findings = _findings(plan, served)
    impossible = any(finding.level == "error" for finding in findings)
    return Diagnosis(verdict="impossible" if impossible else "ok", findings=findings)


def _findings(plan: Plan, served: EngineVersion) -> list[Finding]:
    settings = _Watched(plan.settings)
    findings = [finding for check in served.engine.checks for finding in check(replace(plan, settings=settings))]
    if unread := sorted(plan.settings.keys() - settings.read - set(CONTEXT)):
        message = f"not looked at: {', '.join(unread)}"
        findings.append(info("unknown-setting", message, "nothing to do, unless it is misspelt"))
    if served.unchecked:
        findings.append(warning("version", served.unchecked, "read its release notes for what changed"))
    return sorted(findings, key=lambda finding: ("error", "warning", "info").index(finding.level))


class _Watched(UserDict[str, object]):
    """Settings that remember which of them were asked for."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(settings)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)


def _depth(num_speculative_tokens: int | None, settings: Mapping[str, object]) -> int | None:
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
            return [setting for key, inner in value.items() for setting in _named(f"{_OF_THE_DRAFT[0]}{key}", inner)]
        short = name.removeprefix(prefix)
        if short != name:
            return [(f"{_OF_THE_DRAFT[0]}{short}" if short in _OF_BOTH else short, value)]
    return [(name, value)]
