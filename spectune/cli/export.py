"""`spectune export`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from spectune.cli.files import write_whole
from spectune.cli.options import K_NAMES, argument, flag, option
from spectune.errors import printable

if TYPE_CHECKING:
    from spectune.engines.config import EngineConfig


def export(
    directory: Annotated[Path, argument("DIR", "Directory of a profile.")],
    engine: Annotated[str, option("ENGINE", "Engine that is to serve, such as vllm@0.32.")],
    draft: Annotated[str | None, option("SPEC", "Another draft, measured or not: eagle3:MODEL, mtp …")] = None,
    num_speculative_tokens: Annotated[int | None, option("K", "Another K, in tokens.", *K_NAMES)] = None,
    tree_width: Annotated[int, option("WIDTH", "Proposals that follow each one, where the engine has trees.")] = 1,
    temperature: Annotated[float | None, option("T", "Measured temperature. Default: as in recommend.")] = None,
    output: Annotated[
        Path | None, option("DIR", "Directory for the files that the command reads, or could.", "--output", "-o")
    ] = None,
    as_json: Annotated[bool, flag("Print the config as JSON on stdout.", "--json")] = False,
) -> None:
    """Print what an engine takes for the recommended setting: its command and the files that it reads.

    A verdict of plain decoding gives a command without speculation, unless a draft, K or tree is asked for.
    """
    import sys
    from dataclasses import asdict

    from spectune.decide.plan import recommend
    from spectune.engines.config import exported_config
    from spectune.profile.store import load_profile

    decided = recommend(load_profile(directory), temperature)
    config = exported_config(decided, engine, draft, num_speculative_tokens, tree_width, output)
    if output:
        for name, text in config.files.items():
            write_whole(output / name, text, "give another directory with -o")
    if as_json:
        for text in config.warnings:
            print(f"warning: {text}", file=sys.stderr)
        print(json.dumps(asdict(config), indent=2, ensure_ascii=False))
    else:
        print(_script(config, output))


def _script(config: "EngineConfig", output: Path | None) -> str:
    """As it can be saved and run: what is to be said as comments, files that the command needs before it."""
    said = [*(f"warning: {text}" for text in config.warnings), *config.notes]
    if output:
        said += [f"wrote {output / name}" for name in config.files] or ["no file: the command holds everything"]
    needed = {} if output else config.needed_files
    files = [f"cat > {name} <<'END'\n{text}END" for name, text in needed.items()]
    return "\n".join([*(f"# {printable(text)}" for text in said), *files, config.text])
