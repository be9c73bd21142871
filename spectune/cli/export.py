"""`spectune export`."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from spectune.cli.files import write_whole


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a profile.")],
    engine: Annotated[str, typer.Option(metavar="ENGINE", help="Engine that is to serve, such as vllm@0.32.")],
    draft: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Another draft, measured or not: eagle3:MODEL, mtp …"),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option("--num-speculative-tokens", "-k", metavar="K", help="Another K, in tokens.")
    ] = None,
    tree_width: Annotated[
        int, typer.Option(metavar="WIDTH", help="Proposals that follow each one, where the engine has trees.")
    ] = 1,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="Measured temperature. Default: as in recommend.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Directory for the files that the command reads."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the config as JSON on stdout.")] = False,
) -> None:
    """Print what an engine takes for the recommended setting: its command and the files that it reads.

    A verdict of plain decoding gives a command without speculation, unless a draft, K or tree is asked for.
    """
    import sys
    from dataclasses import asdict, replace

    from spectune.engines.catalogue import engine_config, recommended_config
    from spectune.engines.speculation import best_speculation, named_speculation
    from spectune.plan import recommend
    from spectune.profile import load_profile

    decided = recommend(load_profile(directory), temperature)
    if draft is not None or num_speculative_tokens is not None or tree_width != 1:
        config = engine_config(named_speculation(decided, draft, num_speculative_tokens, tree_width), engine)
    elif decided.verdict == "speculate":
        config = recommended_config(decided, engine)
    else:
        config = engine_config(replace(best_speculation(decided), draft=None), engine)
        config = replace(config, notes=[f"the profile's verdict is {decided.verdict}", *config.notes])
    for text in config.warnings:
        print(f"warning: {text}", file=sys.stderr)
    if output:
        for name, text in config.files.items():
            write_whole(output / name, text)
            config = replace(config, text=config.text.replace(f" {name}", f" {shlex.quote(str(output / name))}"))
    if as_json:
        print(json.dumps(asdict(config), indent=2, ensure_ascii=False))
        return
    print("\n".join(f"# {note}" for note in config.notes))
    print(config.text)
    for name, text in config.files.items():
        print(f"\n# {name}\n{text}", end="")
