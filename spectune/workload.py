"""Prompts in: the built-in set, or a JSON or JSONL file of the user's own."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from spectune.errors import ConfigError

BUILTIN = "builtin"
_UNLABELLED = "uncategorised"
_ROLES = ("system", "user", "assistant", "tool")
_ACCEPTED = 'one object with "prompt", "messages" or "turns", and "category" if you have one'


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request as the user wrote it, before any chat template, and its label."""

    category: str
    messages: tuple[Message, ...]

    @property
    def id(self) -> str:
        """SHA-256 over label and raw messages, 64 hex digits."""
        canonical = [self.category, [[message.role, message.content] for message in self.messages]]
        return hashlib.sha256(json.dumps(canonical, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Named prompts; which are held out depends on their content only."""

    name: str
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 over raw prompts and labels, in any order; the chat template is not part of it."""
        return hashlib.sha256("".join(sorted(prompt.id for prompt in self.prompts)).encode()).hexdigest()

    @property
    def held_out(self) -> tuple[Prompt, ...]:
        """The lowest-hash quarter of each category, rounded down: for confirming, never for profiling."""
        by_category: dict[str, list[Prompt]] = defaultdict(list)
        for prompt in self.prompts:
            by_category[prompt.category].append(prompt)
        lowest = [sorted(group, key=lambda prompt: prompt.id)[: len(group) // 4] for group in by_category.values()]
        chosen = {prompt.id for group in lowest for prompt in group}
        return tuple(prompt for prompt in self.prompts if prompt.id in chosen)

    @property
    def profiled(self) -> tuple[Prompt, ...]:
        """Everything that is not held out."""
        held_out = {prompt.id for prompt in self.held_out}
        return tuple(prompt for prompt in self.prompts if prompt.id not in held_out)

    @property
    def categories(self) -> dict[str, int]:
        """Prompts per category, in order of first appearance."""
        return dict(Counter(prompt.category for prompt in self.prompts))


def load_workload(source: str = BUILTIN) -> Workload:
    """The built-in set, or the file at `source` (.json: a list; .jsonl: one object a line).

    Raises: ConfigError with the line number for what cannot be read as prompts.
    """
    if source == BUILTIN:
        text = resources.files("spectune").joinpath("workload_builtin.jsonl").read_text("utf-8")
        return _workload(BUILTIN, _json_lines(text, BUILTIN))
    path = Path(source)
    text = _read(path)
    objects = _json_list(text, source) if path.suffix == ".json" else _json_lines(text, source)
    return _workload(path.name, objects)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"workload {path} is not UTF-8 at byte {error.start}", "save it as UTF-8") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"workload {path} cannot be read: {reason.lower()}", f"give {BUILTIN}, or a file") from error


def _json_lines(text: str, source: str) -> Iterable[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{source} line {number}", _parsed(line, f"{source} line {number}")


def _json_list(text: str, source: str) -> Iterable[tuple[str, Any]]:
    items = _parsed(text, source)
    if not isinstance(items, list):
        raise ConfigError(f"workload {source} is not a JSON list", "make it a list of objects, or use .jsonl")
    return [(f"{source} item {number}", item) for number, item in enumerate(items, start=1)]


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) and "\n" in text.strip() else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ConfigError(f"workload {where}{line} is not JSON: {reason}", f"expected {_ACCEPTED}") from error


def _workload(name: str, objects: Iterable[tuple[str, Any]]) -> Workload:
    items = list(objects)
    if not items:
        raise ConfigError(f"workload {name} has no prompts", f"expected {_ACCEPTED}, on each line")
    prompts = tuple(_prompt(item, where) for where, item in items)
    cut = sum(isinstance(item.get("turns"), list) and len(item["turns"]) > 1 for _, item in items)
    notes = (f"{cut} prompts have later turns; only their first turn is used",) if cut else ()
    return Workload(name=name, prompts=prompts, notes=notes)


def _prompt(item: Any, where: str) -> Prompt:
    if not isinstance(item, dict):
        raise ConfigError(f"workload {where} is not an object", f"expected {_ACCEPTED}")
    given = [key for key in ("prompt", "messages", "turns") if key in item]
    if len(given) != 1:
        found = " and ".join(given) or "none of prompt, messages, turns"
        raise ConfigError(f"workload {where} has {found}", f"expected {_ACCEPTED}")
    category = item.get("category", _UNLABELLED)
    if not isinstance(category, str) or not category.strip():
        raise ConfigError(f"workload {where}: category is not a name", 'give "category" as a non-empty string')
    return Prompt(category=category, messages=_messages(item[given[0]], given[0], where))


def _messages(value: Any, kind: str, where: str) -> tuple[Message, ...]:
    if kind == "messages":
        if not isinstance(value, list) or not value:
            raise ConfigError(f"workload {where}: messages is not a list", 'give [{"role": "user", "content": …}]')
        return tuple(_message(message, where) for message in value)
    first = value[0] if kind == "turns" and isinstance(value, list) and value else value
    return (Message(role="user", content=_text(first, kind, where)),)


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise ConfigError(f"workload {where}: a message has no known role", f"roles are {', '.join(_ROLES)}")
    return Message(role=message["role"], content=_text(message.get("content"), "content", where))


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"workload {where}: {key} is empty or not text", "give a non-empty string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"workload {where}: {key} holds half a surrogate pair", "fix the escape") from error
    return value
