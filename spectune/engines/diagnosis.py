"""Whether an engine would run a target with a draft: its adapter's findings, and what goes for every engine."""

from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spectune.checkpoints.facts import model_facts
from spectune.drafting_spec import draft_spec
from spectune.engines.catalogue import EngineVersion, engine_named
from spectune.engines.preflight import CONTEXT, Finding, Plan, info, warning
from spectune.engines.settings import depth, in_full, read_settings, without_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What stands in the way comes first among the findings."""

    verdict: Literal["impossible", "ok"]
    findings: list[Finding]


def diagnose(
    target: str, draft: str, engine: str, num_speculative_tokens: int | None, settings: Sequence[str]
) -> Diagnosis:
    """Of models by name, a draft by its SPEC and settings as KEY=VALUE.

    Raises: ConfigError for what is not understood, or cannot be read.
    """
    given = read_settings(settings)
    served = engine_named(engine)
    named = in_full(given, served.engine)
    k = depth(num_speculative_tokens, named)
    spec = draft_spec(draft)
    plan = Plan(
        target=model_facts(target),
        draft=spec,
        model=None if spec.model is None else model_facts(spec.model),
        num_speculative_tokens=k,
        settings=without_depth(named),
    )
    findings = _findings(plan, served)
    impossible = any(finding.level == "error" for finding in findings)
    return Diagnosis(verdict="impossible" if impossible else "ok", findings=findings)


def _findings(plan: Plan, served: EngineVersion) -> list[Finding]:
    settings = _Watched(plan.settings)
    findings = list(served.engine.findings(replace(plan, settings=settings)))
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
