"""`spectune export`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from spectune.cli.files import write_whole


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a profile.")],
    engine: Annotated[str, typer.Option(metavar="ENGINE", help="Engine that is to serve, such as vllm@0.32.")],
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

    A verdict of plain decoding gives a command without speculation.
    """
    import sys
    from dataclasses import asdict, replace

    from spectune.engines import speculation
    from spectune.engines.catalogue import engine_config, recommended_config
    from spectune.plan import recommend
    from spectune.profile import load_profile

    decided = recommend(load_profile(directory), temperature)
    if decided.verdict == "speculate":
        config = recommended_config(decided, engine)
    else:
        config = engine_config(replace(speculation(decided), draft=None), engine)
        config = replace(config, notes=[f"the profile's verdict is {decided.verdict}", *config.notes])
    for text in config.warnings:
        print(f"warning: {text}", file=sys.stderr)
    if output:
        for name, text in config.files.items():
            write_whole(output / name, text)
    if as_json:
        print(json.dumps(asdict(config), indent=2, ensure_ascii=False))
        return
    print("\n".join(f"# {note}" for note in config.notes))
    print(config.text)
    for name, text in config.files.items():
        print(f"\n# {name}\n{text}", end="")
