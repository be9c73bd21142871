"""`spectune`: the commands, and how errors reach the user."""

import os
import re
import sys
from typing import Annotated

import typer

import spectune
from spectune.cli.check import check
from spectune.cli.confirm import confirm
from spectune.cli.doctor import doctor
from spectune.cli.export import export
from spectune.cli.profile import profile
from spectune.cli.recommend import recommend
from spectune.cli.show import show
from spectune.cli.telemetry import telemetry
from spectune.cli.what_if import what_if
from spectune.errors import SpectuneError

_CREDENTIALS = re.compile(r"(?<=//)[^\s/]*@|[^\s/@:]+:[^\s@]+@")  # of a URL, also where its scheme was forgotten
_INTERRUPTED = 130  # what typer, too, makes of Ctrl-C

app = typer.Typer(
    name="spectune",
    help="Whether and how to use speculative decoding, told from measurement on your own machine.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(profile)
app.command()(recommend)
app.command()(confirm)
app.command()(check)
app.command()(show)
app.command()(export)
app.command()(telemetry)
app.command()(doctor)
app.command("what-if")(what_if)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"spectune {spectune.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line; expected failures end as two lines on stderr and their own exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Exit code of one invocation."""
    try:
        code = app(arguments or ["--help"], prog_name="spectune", standalone_mode=False) or 0
        return _interrupted() if code == _INTERRUPTED else int(code)
    except SpectuneError as error:
        return _fail(error.problem, error.remedy, error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        return _fail(error.format_message(), f"{context.command_path if context else 'spectune'} --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _interrupted() -> int:
    return _fail("interrupted", "the same command again; a profile goes on from what is finished", _INTERRUPTED)


def _fail(problem: str, remedy: str, exit_code: int) -> int:
    problem, remedy = (_CREDENTIALS.sub("…@", text) for text in (problem, remedy))
    print(f"error: {problem.rstrip('.')}\ntry:   {remedy}", file=sys.stderr)
    return exit_code
