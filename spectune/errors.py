"""Every error a user can meet: what is wrong, what to do, and the exit code it ends with."""

import os
import re
from typing import ClassVar


class SpectuneError(Exception):
    """An expected failure: one line that says what is wrong, one that says what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class ConfigError(SpectuneError):
    """Wrong option, file or value."""

    exit_code = 2


class ProfileError(SpectuneError):
    """Malformed, older, newer or mismatched artefact."""

    exit_code = 2


class IncompatibleModelsError(SpectuneError):
    """Tokenizer, vocabulary or positions of two models do not fit."""

    exit_code = 2


class DeviceError(SpectuneError):
    """No such device, or out of memory."""

    exit_code = 3


class EngineError(SpectuneError):
    """An endpoint is unreachable, refuses, or answers nonsense."""

    exit_code = 3


class InsufficientDataError(SpectuneError):
    """The interval is too wide to decide."""

    exit_code = 4


def reason_of(error: OSError) -> str:
    """Why the system refused, in its own words; some libraries wrap them in theirs, or fail with a list of failures."""
    if error.errno:
        return os.strerror(error.errno).lower()
    failures = error.args[0] if error.args and isinstance(error.args[0], list) else []
    text = str(failures[0][-1] if failures else error)
    return re.sub(r"^\[errno \d+\] ", "", text.lower()).split(":")[0]


def printable(text: str) -> str:
    """As it is where a terminal can show it, else escaped: texts of others may hold what steers a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]


_MAY_HOLD_SECRETS = re.compile(r"(?://|:|%3a).*@|[/\w]\?\w+=", re.IGNORECASE | re.DOTALL)


def may_hold_secrets(text: str) -> bool:
    """Whether it looks like a URL with a user, password or token: such a text is quoted nowhere."""
    return _MAY_HOLD_SECRETS.search(text) is not None
