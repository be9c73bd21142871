"""`spectune doctor`."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from spectune.errors import ConfigError, may_hold_secrets, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectune.engines import Finding

_K_SETTINGS = ("num_speculative_tokens", "speculative_num_steps", "max_draft_len", "spec_draft_n_max")
_K_ALONE = ("num_speculative_tokens", "spec_draft_n_max")  # which say nothing but K
_IN_FULL = {"tp": "tensor_parallel_size", "tp_size": "tensor_parallel_size", "dp": "data_parallel_size",
            "dp_size": "data_parallel_size"}  # fmt: skip
_OF_THE_DRAFT = ("speculative_config.", "sc.")
_MOST, _MOST_PARTS, _LONGEST = 1 << 48, 10_000, 1000
_OF_BOTH = ("max_model_len", "tensor_parallel_size")  # which the target has too


def doctor(
    target: Annotated[str, typer.Option(metavar="MODEL", help="Hub id, folder or .gguf file of the target.")],
    draft: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Draft: a model, ngram:min=A,max=B, layers:N, eagle:MODEL, eagle3:MODEL, medusa:MODEL, mtp or suffix.",
        ),
    ],
    engine: Annotated[str, typer.Option(metavar="ENGINE", help="Engine that is to serve, such as vllm@0.32.")],
    num_speculative_tokens: Annotated[
        int | None, typer.Option("--num-speculative-tokens", "-k", metavar="K", help="K, in tokens.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the engine, under its own name. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON on stdout.")] = False,
) -> int:
    """Would an engine run this pair: what it refuses, changes by itself or does inexactly, before any weight loads.

    Exits with 2 where it is impossible.
    """
    from spectune.checkpoints.facts import model_facts
    from spectune.drafting_spec import draft_spec
    from spectune.engines import Plan
    from spectune.engines.catalogue import engine_findings, engine_named

    settings = {name: value for one in setting or [] for name, value in _settings(*_setting(one))}
    if engine_named(engine)[0].NAME == "vLLM":
        settings = {_IN_FULL.get(name, name): value for name, value in settings.items()}
    k = _depth(num_speculative_tokens, settings)
    settings = {name: value for name, value in settings.items() if name not in _K_ALONE}
    spec = draft_spec(draft)
    plan = Plan(
        target=model_facts(target),
        draft=spec,
        model=None if spec.model is None else model_facts(spec.model),
        num_speculative_tokens=k,
        settings=settings,
    )
    found = engine_findings(plan, engine)
    impossible = any(one.level == "error" for one in found)
    if as_json:
        from dataclasses import asdict

        result = {"verdict": "impossible" if impossible else "ok", "findings": [asdict(one) for one in found]}
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        print(_summary(found, engine, impossible))
    return ConfigError.exit_code if impossible else 0


def _depth(asked: int | None, settings: "Mapping[str, object]") -> int | None:
    """K, as the option and any of the settings give it. Raises: ConfigError where they differ, or it is none."""
    from spectune.engines import is_count

    given = {f"--set {name}": settings[name] for name in _K_SETTINGS if name in settings}
    given |= {} if asked is None else {"-k": asked}
    for name, value in given.items():
        if not is_count(value) or not 1 <= value <= _LONGEST:  # type: ignore[operator]
            raise ConfigError(f"K is {str(value)[:20]} by {name}", f"give a whole number from 1 to {_LONGEST:,}")
    if len(set(given.values())) > 1:
        raise ConfigError(
            f"K is given twice: {', '.join(f'{name} {value}' for name, value in given.items())}", "give one"
        )
    return next((value for value in given.values() if isinstance(value, int)), None)


def _setting(text: str) -> tuple[str, object]:
    """A key and its value; a key alone is a flag, set."""
    import yaml

    key, separator, value = text.partition("=")
    if not separator:
        key, _, value = text.strip().partition(" ")
    name = key.strip().lstrip("-").replace("-", "_")
    if not name or not name.isprintable() or may_hold_secrets(name):
        raise ConfigError(f"--set {text[:60]!r} is not understood", "write --set tensor_parallel_size=4")
    try:
        found = yaml.safe_load(value) if value.strip() else True
    except Exception as error:  # its constructors meet hostile text with any error
        raise ConfigError(f"--set {name} has a value that is no YAML", "write it as in the engine's config") from error
    _require_sane(name, found)
    return name, found


def _require_sane(name: str, value: object) -> None:
    """No value that grows out of its text, refers to itself, or that no terminal could show."""
    left, seen = [value], 0
    while left:
        one, seen = left.pop(), seen + 1
        left += [*one.keys(), *one.values()] if isinstance(one, dict) else one if isinstance(one, list) else []
        huge = isinstance(one, int | float) and not abs(one) < _MOST
        odd = isinstance(one, str) and (not one.isprintable() or may_hold_secrets(one))
        if seen > _MOST_PARTS or huge or odd:
            raise ConfigError(f"--set {name} has a value that no engine takes", "write it as in the engine's config")


def _settings(name: str, value: object) -> list[tuple[str, object]]:
    """Under the names that engines' rules look for; those of a speculative_config given whole, each for itself."""
    for prefix in _OF_THE_DRAFT:
        if name == prefix[:-1] and isinstance(value, dict):
            return [one for key, inner in value.items() for one in _settings(f"{_OF_THE_DRAFT[0]}{key}", inner)]
        short = name.removeprefix(prefix)
        if short != name:
            return [(f"{_OF_THE_DRAFT[0]}{short}" if short in _OF_BOTH else short, value)]
    return [(name, value)]


def _summary(found: "list[Finding]", engine: str, impossible: bool) -> str:
    lines = [f"{engine}: {'impossible' if impossible else 'ok'}"]
    for one in found:
        lines += [f"{one.level:<7} {printable(one.message)}", f"        try: {printable(one.remedy)}"]
    return "\n".join(lines)
