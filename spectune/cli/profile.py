"""`spectune profile`."""

import logging
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spectune.cli.options import flag, option
from spectune.drafting_spec import DEFAULT_DRAFT
from spectune.errors import ConfigError
from spectune.profile.run import Run, read_run

if TYPE_CHECKING:
    from spectune.measure.preparation import ProfileRequest

_DEFAULTS = Run()


def profile(
    context_of_call: typer.Context,
    output: Annotated[str | None, option("DIR", "Directory to save the profile in.", "--output", "-o")] = None,
    run: Annotated[Path | None, option("FILE", "YAML file of these options; those given here come first.")] = None,
    target: Annotated[
        str | None, option("M", "Target: hub id, local folder or .gguf. Default: the embedded SmolLM2-135M.")
    ] = None,
    draft: Annotated[
        list[str] | None,
        option(
            "SPEC",
            f"Draft: a model, layers:N (the target's first N), or {DEFAULT_DRAFT}; with ,branches=4 a tree. "
            "Repeatable. Default: n-gram.",
        ),
    ] = None,
    workload: Annotated[
        str,
        option(
            "W",
            "Prompts: builtin; FILE or FILE:COLUMN (.jsonl, .json, .csv, .tsv, .txt, also .gz); - for stdin; "
            "hf:DATASET:SPLIT:COLUMN.",
        ),
    ] = _DEFAULTS.workload,
    temperature: Annotated[
        list[float] | None,
        option("T", "Sampling temperature, 0 = greedy. Repeatable. Default: 0, 1 and the target's own."),
    ] = None,
    max_k: Annotated[int, option("K", "Largest num_speculative_tokens, in tokens.")] = _DEFAULTS.max_k,
    max_new_tokens: Annotated[
        int, option("N", "Length of each recorded continuation, in tokens.")
    ] = _DEFAULTS.max_new_tokens,
    limit_tokens: Annotated[
        int | None, option("N", "Where your own requests end, in tokens, if recording goes that far. Default: unknown.")
    ] = None,
    batch: Annotated[
        list[int] | None, option("B", "Also measure costs at this batch, in sequences. Repeatable. Always: 1.")
    ] = None,
    context: Annotated[
        list[int] | None,
        option("L", "Also measure costs at this context, in tokens. Repeatable. Always: the workload's own."),
    ] = None,
    budget_s: Annotated[float, option("S", "Time for measuring costs, in seconds.")] = _DEFAULTS.budget_s,
    quick: Annotated[
        bool,
        flag("For CI: T = 0, up to K = 4, 32 tokens, 30 s for costs, wherever nothing else is asked for.", "--quick"),
    ] = False,
    tape: Annotated[
        str | None,
        option("DIR", "Replay the drafts on the texts of this profile instead of recording its target again."),
    ] = None,
    device: Annotated[str, option("D", "auto, cpu, cuda, cuda:1, …")] = _DEFAULTS.device,
    dtype: Annotated[str, option("T", "auto, float32, bfloat16 or float16.")] = _DEFAULTS.dtype,
    seed: Annotated[int, option("S", "Seed of every random choice.")] = _DEFAULTS.seed,
    no_text: Annotated[
        bool, flag("Save hashes, counts and evidence only: no prompts, no outputs.", "--no-text")
    ] = False,
    trust_remote_code: Annotated[bool, flag("Run code that comes with a checkpoint.", "--trust-remote-code")] = False,
    force: Annotated[
        bool, flag("Measure anew what stands at DIR; discard a run of other settings there.", "--force")
    ] = False,
    dry_run: Annotated[
        bool, flag("Tell what it will take, in seconds, memory and disk; measure nothing.", "--dry-run")
    ] = False,
    verbose: Annotated[bool, flag("Log each step on stderr.", "-v", "--verbose")] = False,
) -> None:
    """Measure target, drafts and machine on a workload, and save the evidence.

    An interrupted run goes on with the same command.
    """
    from spectune.measure.preparation import ProfileRequest, check_run, recorded_with

    asked = read_run(run, _given(context_of_call))
    if asked.tape is not None:
        asked = read_run(run, _given(context_of_call), recorded_with(Path(asked.tape)))
    if asked.output is None:
        raise ConfigError("there is no directory to save in", "give -o DIR, or output: DIR in the run file")
    command = shlex.join(["spectune", *sys.argv[1:]])
    request = ProfileRequest(run=asked, output=Path(asked.output), command=command, force=force)
    if dry_run:
        check_run(request)
        _tell(asked)
    else:
        _measure(request, verbose)


def _tell(run: Run) -> None:
    """The estimate, on stdout."""
    from spectune.cli.terminal import show_seconds
    from spectune.measure.environment import other_work
    from spectune.measure.estimate import estimate_run
    from spectune.workload.prompts import too_few

    told = estimate_run(run)
    show_seconds(told.seconds)
    free = "" if told.free_bytes == float("inf") else f" of {told.free_bytes / 1e9:,.1f} GB free"
    print(f"{'memory':<8} {told.memory_bytes / 1e9:>8,.1f} GB{free}")
    disk, unit = (told.disk_bytes / 1e9, "GB") if told.disk_bytes > 1e8 else (told.disk_bytes / 1e6, "MB")
    print(f"{'disk':<8} {disk:>8,.1f} {unit}")
    if told.seconds["costs"] > 1.05 * run.budget_s:
        print(f"costs take that long at least, whatever --budget-s {run.budget_s:g} says: every kind of work six times")
    if told.memory_bytes > told.free_bytes:
        print("it will not fit, or only in smaller batches")
    for line in filter(None, (too_few(told.prompts), other_work())):
        print(line)


def _given(call: typer.Context) -> dict[str, Any]:
    """The options that stand on the command line, under their names."""
    names = {one.name for one in fields(Run)}
    return {
        name: value
        for name, value in call.params.items()
        if name in names and getattr(call.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def _measure(request: "ProfileRequest", verbose: bool) -> None:
    from spectune.cli.terminal import TerminalProgress, show_settings, show_warnings
    from spectune.decide.fit import fit_settings
    from spectune.decide.formula import fit_formula
    from spectune.measure.pipeline import measure_profile
    from spectune.profile.costs import CostCells

    with tempfile.TemporaryDirectory() as folder, TerminalProgress() as progress:
        run_log = Path(folder) / "run.log"
        with _logging_to(run_log, verbose):
            measured = measure_profile(request, progress, run_log)
    console, output = progress.console, request.output
    settings = fit_settings(measured, CostCells.of(measured.costs))
    console.print()
    show_settings(console, settings, fit_formula(settings))
    show_warnings(console, measured.manifest.warnings)
    console.print(f"saved {output} · next: spectune recommend {shlex.quote(str(output))}", soft_wrap=True)


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
