"""`spectune doctor`."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from spectune.errors import ConfigError

if TYPE_CHECKING:
    from spectune.engines import Finding

_K_SETTINGS = ("num_speculative_tokens", "speculative_num_steps", "max_draft_len", "spec_draft_n_max")
_K_ALONE = ("num_speculative_tokens", "spec_draft_n_max")  # which say nothing but K
_IN_FULL = {"tp": "tensor_parallel_size", "tp_size": "tensor_parallel_size", "dp": "data_parallel_size",
            "dp_size": "data_parallel_size"}  # fmt: skip
_OF_THE_DRAFT = "speculative_config."
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
    from spectune.drafting_spec import draft_spec
    from spectune.engines import Plan
    from spectune.engines.catalogue import engine_findings
    from spectune.model_facts import model_facts

    settings = {name: value for one in setting or [] for name, value in _settings(*_setting(one))}
    known = iter([settings[name] for name in _K_SETTINGS if isinstance(settings.get(name), int)])
    k = next(known, None) if num_speculative_tokens is None else num_speculative_tokens
    settings = {name: value for name, value in settings.items() if name not in _K_ALONE}
    if isinstance(k, int) and k < 1:
        raise ConfigError(f"K is {k}", "give a whole number of at least 1")
    spec = draft_spec(draft)
    plan = Plan(
        target=model_facts(target),
        draft=spec,
        model=None if spec.model is None else model_facts(spec.model),
        num_speculative_tokens=k if isinstance(k, int) else None,
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


def _setting(text: str) -> tuple[str, object]:
    import yaml

    key, equals, value = text.partition("=")
    name = key.strip().lstrip("-").replace("-", "_")
    if not equals or not name:
        raise ConfigError(f"--set {text} is not understood", "write --set tensor_parallel_size=4")
    try:
        return name, yaml.safe_load(value)
    except Exception as error:  # its constructors meet hostile text with any error
        raise ConfigError(f"--set {name} has a value that is no YAML", "write it as in the engine's config") from error


def _settings(name: str, value: object) -> list[tuple[str, object]]:
    """Under the names that engines' rules look for; those of a speculative_config given whole, each for itself."""
    if name == _OF_THE_DRAFT[:-1] and isinstance(value, dict):
        return [one for key, inner in value.items() for one in _settings(f"{_OF_THE_DRAFT}{key}", inner)]
    short = name.removeprefix(_OF_THE_DRAFT)
    if short == name or short not in _OF_BOTH:
        name = short
    return [(_IN_FULL.get(name, name), value)]


def _summary(found: "list[Finding]", engine: str, impossible: bool) -> str:
    lines = [f"{engine}: {'impossible' if impossible else 'ok'}"]
    for one in found:
        lines += [f"{one.level:<7} {one.message}", f"        try: {one.remedy}"]
    return "\n".join(lines)
