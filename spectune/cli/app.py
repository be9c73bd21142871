"""`spectune`: the commands, and how errors reach the user."""

import io
import os
import re
import signal
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
from spectune.errors import SpectuneError, may_hold_secrets, reason_of

_CREDENTIALS = re.compile(r"(?<=//)[^\s/]*@|[^\s/@:]+:[^\s@]+@")  # of a URL, also where its scheme was forgotten
_INTERRUPTED = 130  # what typer, too, makes of Ctrl-C

app = typer.Typer(
    name="spectune",
    help="Whether and how to use speculative decoding, told from measurement on your own machine.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (profile, recommend, confirm, check, show, export, telemetry, doctor, what_if):
    app.command()(command)


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without the characters is no reason to fail
    signal.signal(signal.SIGTERM, _stop)
    code = run(sys.argv[1:])
    sys.exit(_flushed() or code)


def _stop(number: int, frame: object) -> None:
    """A scheduler's way to interrupt: as Ctrl-C, so that what is kept is told."""
    del number, frame
    raise KeyboardInterrupt


def _flushed() -> int:
    """Exit code where what was printed could not be written after all, else 0."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _gone()
    except OSError as error:
        _gone()
        return _fail(f"the output cannot be written: {reason_of(error)}", "free some space, or write elsewhere", 2)
    return 0


def _gone() -> int:
    """Nobody reads any more: what is left goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def run(arguments: list[str]) -> int:
    """Exit code of one invocation."""
    try:
        code = app(arguments or ["--help"], prog_name="spectune", standalone_mode=False) or 0
        return _interrupted() if code == _INTERRUPTED else int(code)
    except SpectuneError as error:
        return _fail(_without(arguments, error.problem), _without(arguments, error.remedy), error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        problem = _without(arguments, error.format_message())
        return _fail(problem, f"{context.command_path if context else 'spectune'} --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except (BrokenPipeError, SystemExit):  # the latter is typer's word for the former
        return _gone()
    except OSError as error:
        return _fail(f"the system refused: {reason_of(error)}", "check disk, paths and permissions", 2)


def _without(arguments: list[str], text: str) -> str:
    """A text that quotes no argument which may hold credentials."""
    for argument in sorted(arguments, key=len, reverse=True):
        if may_hold_secrets(argument):
            text = text.replace(argument, "…").replace(repr(argument), "…")
    return text


def _interrupted() -> int:
    return _fail("interrupted", "the same command again; a profile goes on from what is finished", _INTERRUPTED)


def _fail(problem: str, remedy: str, exit_code: int) -> int:
    problem, remedy = (_CREDENTIALS.sub("…@", text) for text in (problem, remedy))
    print(f"error: {problem.rstrip('.')}\ntry:   {remedy}", file=sys.stderr)
    return exit_code
