"""`spectune doctor`."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from spectune.errors import ConfigError, printable

if TYPE_CHECKING:
    from spectune.engines.diagnosis import Diagnosis


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
    from dataclasses import asdict

    from spectune.engines.diagnosis import diagnose

    diagnosis = diagnose(target, draft, engine, num_speculative_tokens, setting or [])
    print(json.dumps(asdict(diagnosis), indent=2, ensure_ascii=False) if as_json else _summary(diagnosis, engine))
    return ConfigError.exit_code if diagnosis.verdict == "impossible" else 0


def _summary(diagnosis: "Diagnosis", engine: str) -> str:
    lines = [f"{engine}: {diagnosis.verdict}"]
    for finding in diagnosis.findings:
        lines += [f"{finding.level:<7} {printable(finding.message)}", f"        try: {printable(finding.remedy)}"]
    return "\n".join(lines)
