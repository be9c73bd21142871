"""`spectune doctor`."""

import json
from typing import Annotated

from spectune.cli.options import K_NAMES, flag, option
from spectune.errors import ConfigError, printable

_OTHER_DRAFTS = "ngram:min=A,max=B, layers:N, eagle:MODEL, eagle3:MODEL, medusa:MODEL, mtp or suffix"


def doctor(
    target: Annotated[str, option("MODEL", "Hub id, folder or .gguf file of the target.")],
    draft: Annotated[str, option("SPEC", f"Draft: a model, {_OTHER_DRAFTS}.")],
    engine: Annotated[str, option("ENGINE", "Engine that is to serve, such as vllm@0.32.")],
    num_speculative_tokens: Annotated[int | None, option("K", "K, in tokens.", *K_NAMES)] = None,
    setting: Annotated[
        list[str] | None, option("KEY=VALUE", "A setting of the engine, under its own name. Repeatable.", "--set")
    ] = None,
    as_json: Annotated[bool, flag("Print the findings as JSON on stdout.", "--json")] = False,
) -> int:
    """Would an engine run this pair: what it refuses, changes by itself or does inexactly, before any weight loads.

    Exits with 2 where it is impossible.
    """
    from dataclasses import asdict

    from spectune.engines.diagnosis import diagnose

    diagnosis = diagnose(target, draft, engine, num_speculative_tokens, setting or [])
    if as_json:
        print(json.dumps(asdict(diagnosis), indent=2, ensure_ascii=False))
    else:
        print(f"{engine}: {diagnosis.verdict}")
        for finding in diagnosis.findings:
            print(f"{finding.level:<7} {printable(finding.message)}\n        try: {printable(finding.remedy)}")
    return ConfigError.exit_code if diagnosis.verdict == "impossible" else 0
