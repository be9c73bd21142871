"""`spectune profile`."""

import logging
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from spectune.drafting_spec import DEFAULT_DRAFT


def profile(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to save the profile in.")],
    target: Annotated[
        str | None,
        typer.Option(metavar="M", help="Target: hub id, local folder or .gguf. Default: the embedded SmolLM2-135M."),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help=f"Draft: a model, layers:N (the target's first N), or {DEFAULT_DRAFT}. Repeatable. Default: n-gram.",
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="W",
            help="Prompts: builtin; FILE or FILE:COLUMN (.jsonl, .json, .csv, .tsv, .txt, also .gz); - for stdin; "
            "hf:DATASET:SPLIT:COLUMN.",
        ),
    ] = "builtin",
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            metavar="T", help="Sampling temperature, 0 = greedy. Repeatable. Default: 0, 1 and the target's own."
        ),
    ] = None,
    max_k: Annotated[int, typer.Option(metavar="K", help="Largest num_speculative_tokens, in tokens.")] = 8,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", help="Length of each recorded continuation, in tokens.")
    ] = 64,
    limit_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Where your own requests end, in tokens, if recording goes that far. Default: unknown."
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="B", help="Also measure costs at this batch, in sequences. Repeatable. Always: 1."),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            metavar="L", help="Also measure costs at this context, in tokens. Repeatable. Always: the workload's own."
        ),
    ] = None,
    budget_s: Annotated[float, typer.Option(metavar="S", help="Time for measuring costs, in seconds.")] = 60.0,
    device: Annotated[str, typer.Option(metavar="D", help="auto, cpu, cuda, cuda:1, …")] = "auto",
    dtype: Annotated[str, typer.Option(metavar="T", help="auto, float32, bfloat16 or float16.")] = "auto",
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of every random choice.")] = 0,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Also record Σ min(p, q) for draft models; one more pass of the target.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with a checkpoint.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log each step on stderr.")] = False,
) -> None:
    """Measure target, drafts and machine on a workload, and save the evidence."""
    from spectune.cli.terminal import TerminalProgress, show_settings, show_warnings
    from spectune.costs import CostCells
    from spectune.fit import fit_settings
    from spectune.formula import fit_formula
    from spectune.measure.pipeline import ProfileRequest, measure_profile

    request = ProfileRequest(
        output=output,
        command=shlex.join(["spectune", *sys.argv[1:]]),
        target=target,
        drafts=tuple(draft or ()),
        workload=workload,
        temperatures=tuple(temperature or ()),
        max_k=max_k,
        max_new_tokens=max_new_tokens,
        limit_tokens=limit_tokens,
        batches=tuple(batch or ()),
        contexts=tuple(context or ()),
        budget_s=budget_s,
        device=device,
        dtype=dtype,
        seed=seed,
        trust_remote_code=trust_remote_code,
        overlap=overlap,
    )
    with tempfile.TemporaryDirectory() as folder, TerminalProgress() as progress:
        run_log = Path(folder) / "run.log"
        with _logging_to(run_log, verbose):
            measured = measure_profile(request, progress, run_log)
    console = progress.console
    settings = fit_settings(measured, CostCells(measured.costs))
    console.print()
    show_settings(console, settings, fit_formula(settings))
    show_warnings(console, measured.manifest.warnings)
    console.print(f"saved {output} · next: spectune recommend {shlex.quote(str(output))}", markup=False, soft_wrap=True)


@contextmanager
def _logging_to(run_log: Path, verbose: bool) -> Iterator[None]:
    """The log of this run, and of no other."""
    logger = logging.getLogger("spectune")
    logger.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [logging.FileHandler(run_log, encoding="utf-8")]
    if verbose:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
