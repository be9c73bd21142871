"""How a command's options are written: what they take, in one word, and what they do."""

from typing import Any

import typer

K_NAMES = ("--num-speculative-tokens", "-k")


def argument(takes: str, does: str) -> Any:
    """By its place."""
    return typer.Argument(metavar=takes, help=does)


def option(takes: str, does: str, *names: str) -> Any:
    """By name, its parameter's own if none is given."""
    return typer.Option(*names, metavar=takes, help=does)


def flag(does: str, *names: str) -> Any:
    """Given or not."""
    return typer.Option(*names, help=does)
