"""`spectune check`."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from spectune.cli.files import write_whole
from spectune.cli.options import argument, flag, option
from spectune.decide.metrics import PARTS  # noqa: TID253 - a table that imports nothing
from spectune.errors import ConfigError, InsufficientDataError, ProfileError, reason_of
from spectune.profile.run import MAX_REGRESSION, read_run

if TYPE_CHECKING:
    from spectune.decide.check import Check

_EXIT_CODES = {
    "ok": 0,
    "regressed": 1,
    "not-comparable": ProfileError.exit_code,
    "too-noisy": InsufficientDataError.exit_code,
}


def check(
    baseline: Annotated[Path, argument("BASELINE", "Directory of the profile to compare with.")],
    candidate: Annotated[Path, argument("CANDIDATE", "Directory of the profile to judge.")],
    max_regression: Annotated[
        float, option("SHARE", "Largest change for the worse that passes, as a share.")
    ] = MAX_REGRESSION,
    run: Annotated[
        Path | None, option("FILE", "Run file whose max_regression allows some figures another change.")
    ] = None,
    only: Annotated[
        list[str] | None, option("PART", f"Compare this part only: {', '.join(PARTS)}. Repeatable. Default: all.")
    ] = None,
    also_baseline: Annotated[
        list[Path] | None, option("DIR", "A further profile of the baseline, for its costs. Repeatable.")
    ] = None,
    also_candidate: Annotated[
        list[Path] | None, option("DIR", "A further profile of the candidate, for its costs. Repeatable.")
    ] = None,
    junit: Annotated[Path | None, option("FILE", "Also write JUnit XML.")] = None,
    as_json: Annotated[bool, flag("Print the findings as JSON on stdout.", "--json")] = False,
) -> int:
    """Compare two profiles: did acceptance or a cost get worse, beyond noise and beyond what is allowed.

    Exits with 1 where one did, 2 where the two cannot be compared, 4 where the data are too noisy to tell. In a GitHub
    job it adds a summary and annotations.
    """
    from spectune.cli.terminal import show_check
    from spectune.decide.check import check as compare
    from spectune.profile.store import load_profile
    from spectune.report.ci import junit_xml

    by_metric = read_run(run, {}).max_regression if run else {}
    try:
        also = [[load_profile(other) for other in others or []] for others in (also_baseline, also_candidate)]
        checked = compare(load_profile(baseline), load_profile(candidate), max_regression, by_metric, only or [], *also)
    except ProfileError as error:
        if as_json:
            print(json.dumps({"verdict": "not-comparable", "findings": [], "reason": error.problem}, indent=2))
        raise
    _to_the_job(checked)
    if junit:
        write_whole(junit, junit_xml(checked), "give another file with --junit")
    if as_json:
        print(json.dumps(asdict(checked), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show_check(checked)
    return _EXIT_CODES[checked.verdict]


def _to_the_job(checked: "Check") -> None:
    """The summary and annotations of a GitHub job, where this runs in one."""
    from spectune.report.ci import annotations, summary_markdown

    if os.environ.get("GITHUB_ACTIONS") == "true":
        print("\n".join(annotations(checked)), file=sys.stderr)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(summary_markdown(checked))
        except OSError as error:
            problem = f"the job summary {summary} cannot be written: {reason_of(error)}"
            raise ConfigError(problem, "unset GITHUB_STEP_SUMMARY") from error
