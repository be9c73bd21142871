"""A setting as text for one engine: the recommended one, the best that the engine can run, or one that is named."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from spectune.decide.recommendation import Recommendation
from spectune.engines.catalogue import EngineVersion, engine_named
from spectune.engines.speculation import FOLDER, Speculation, best_speculation, named_speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A setting as one engine takes it: a command or code, and the files it reads, by name."""

    engine: str
    version: str  # that was asked for
    checked_against: str  # whose public documentation, source or parser the text was checked against
    draft: str | None  # None: plain decoding
    num_speculative_tokens: int  # of a tree: its depth
    tree_width: int
    language: str  # of `text`, for the code fence
    text: str
    files: dict[str, str]
    acceptance_rule: str
    acceptance_length: float | None  # under that rule, bonus included; None where it is not known
    notes: list[str]
    warnings: list[str]

    @property
    def needed_files(self) -> dict[str, str]:
        """Those without which `text`, if it names no folder, cannot run."""
        return {name: content for name, content in self.files.items() if f" {name}" in self.text}


def engine_config(speculation: Speculation, engine: str, folder: Path | None = None) -> EngineConfig:
    """What to paste there, its files in a folder; a version that was not checked is a warning. Raises: ConfigError."""
    served = engine_named(engine)
    able, notes, warnings = _able(speculation, served)
    written = served.engine.config(able)
    return EngineConfig(
        engine=served.engine.name,
        version=served.version,
        checked_against=served.engine.checked_against,
        draft=able.draft.text if able.draft else None,
        num_speculative_tokens=able.num_speculative_tokens if able.draft else 0,
        tree_width=able.tree_width,
        language=written.language,
        text=written.text.replace(FOLDER, "" if folder is None else shlex.quote(f"{folder}/")),
        files=written.files,
        acceptance_rule=written.rule,
        acceptance_length=1.0 if written.rule == "none" else able.lengths.get(written.rule),
        notes=["speed-up not measured here", *speculation.notes, *notes, *written.notes],
        warnings=warnings,
    )


def _able(speculation: Speculation, served: EngineVersion) -> tuple[Speculation, list[str], list[str]]:
    """As much of it as the engine can do in that version, with notes and warnings of what is left out."""
    engine, draft, unchecked = served.engine, speculation.draft, served.unchecked
    notes, warnings = [], [unchecked] if unchecked else []
    if draft is None:
        return speculation, ["plain decoding"], warnings
    if draft.method not in engine.methods:
        warnings.append(f"{engine.name} has no {draft.method.replace('_', ' ')} drafting; this is plain decoding")
        return replace(speculation, draft=None), [], warnings
    if speculation.instead_of:
        warnings.append(f"{engine.name} has no {speculation.instead_of}; {draft.text} is the best here that it has")
    if speculation.varies and unchecked:
        notes.append(f"no schedule by batch: what {engine.name} {served.version} makes of one was not checked")
        speculation = replace(speculation, schedule=[])
    if speculation.tree_width > 1 and draft.method not in engine.trees:
        warnings.append(f"{engine.name} verifies chains of {draft.method} drafts, no trees; this is a chain")
        speculation = replace(speculation, tree_width=1)
    return speculation, notes, warnings


def recommended_config(recommendation: Recommendation, engine: str, folder: Path | None = None) -> EngineConfig:
    """For the best candidate that the engine can run. Raises: ConfigError."""
    return engine_config(best_speculation(recommendation, engine_named(engine).engine.methods), engine, folder)


def exported_config(
    recommendation: Recommendation,
    engine: str,
    draft: str | None = None,
    num_speculative_tokens: int | None = None,
    tree_width: int = 1,
    folder: Path | None = None,
) -> EngineConfig:
    """For what is named, or for what the verdict says, which may be plain decoding. Raises: ConfigError.

    Where the engine has no method as it is named, for the best measured that it has.
    """
    verdict = f"the profile's verdict is {recommendation.verdict}"
    if draft is not None or num_speculative_tokens is not None or tree_width != 1:
        named = named_speculation(recommendation, draft, num_speculative_tokens, tree_width)
        methods = engine_named(engine).engine.methods
        best = best_speculation(recommendation, methods)
        if named.draft and named.draft.method not in methods and best.draft and best.draft.method in methods:
            named = replace(best, instead_of=named.draft.text, notes=[verdict, *best.notes])
        return engine_config(named, engine, folder)
    if recommendation.verdict == "speculate":
        return recommended_config(recommendation, engine, folder)
    config = engine_config(replace(best_speculation(recommendation), draft=None, notes=[]), engine, folder)
    return replace(config, notes=[verdict, *config.notes])
