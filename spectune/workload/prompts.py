"""Prompts in: the built-in set, or the user's own, from whatever form people keep them in."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from spectune.errors import ConfigError
from spectune.profile.manifest import Notice
from spectune.stats import MIN_EFFECTIVE_PROMPTS
from spectune.workload.sources import ACCEPTED, Item, read_items

BUILTIN = "builtin"
_UNLABELLED = "uncategorised"
_ROLES = ("system", "user", "assistant", "tool")
_SHAREGPT_ROLES = {"human": "user", **dict.fromkeys(("gpt", "chatgpt", "bing", "bard"), "assistant")}
_FORMS = ("prompt", "question", "messages", "turns", "conversations", "body")
_LOGS = ("turns", "conversations")  # of what was said over time; the others hold a request


def too_few(profiled: int) -> str | None:
    """A line where that many prompts cannot bear a verdict, however they turn out."""
    if profiled >= MIN_EFFECTIVE_PROMPTS:
        return None
    whole = -(-MIN_EFFECTIVE_PROMPTS * 4 // 3)
    return (
        f"{profiled} prompts are profiled, the others kept for confirming: a verdict needs {MIN_EFFECTIVE_PROMPTS}; "
        f"give {whole} prompts or more, best 48"
    )


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
    place: str = field(default="", compare=False)  # where it stands in its source

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
    notices: tuple[Notice, ...] = ()

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
    """The built-in set, or prompts from a source as prompt_sources.read_items takes it.

    Empty and repeated prompts are left out and counted in the notices. Raises: ConfigError with the place of
    what cannot be read as a prompt.
    """
    if source == BUILTIN:
        lines = resources.files("spectune.workload").joinpath("builtin.jsonl").read_text("utf-8").splitlines()
        return _workload(BUILTIN, [(f"{BUILTIN} line {n}", json.loads(line)) for n, line in enumerate(lines, start=1)])
    return _workload(*read_items(source))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What of an item is asked; messages are empty where it says nothing."""

    category: str
    messages: tuple[Message, ...]
    place: str
    more_turns: bool  # the user asked again later, which is not used
    answered: bool  # the answer stands there too, which is not used either


def _workload(name: str, items: Sequence[Item]) -> Workload:
    if not items:
        raise ConfigError(f"workload {name} has no prompts", f"expected {ACCEPTED}")
    requests = [_request(item, where) for where, item in items]
    asking = [request for request in requests if request.messages]
    if not asking:
        raise ConfigError(f"workload {name} has empty prompts only", "give prompts with text in them")
    prompts = [Prompt(category=request.category, messages=request.messages, place=request.place) for request in asking]
    different = tuple(dict.fromkeys(prompts))
    empty, repeated = len(requests) - len(asking), len(prompts) - len(different)
    return Workload(name=name, prompts=different, notices=_notices(asking, empty, repeated))


def _notices(asking: Sequence[_Request], empty: int, repeated: int) -> tuple[Notice, ...]:
    more_turns, answered = (sum(getattr(one, name) for one in asking) for name in ("more_turns", "answered"))
    found = [
        (more_turns, "later turns that are not used", "split turns into prompts"),
        (answered, "answers of their own, not used", "the target writes its own"),
        (empty, "no text, left out", "check how the file was written"),
        (repeated, "the text of an earlier one, left out", "said twice, a prompt tells nothing new"),
    ]
    return tuple(
        Notice(code="workload", message=f"prompts with {what}: {count}", advice=advice)
        for count, what, advice in found
        if count
    )


def _request(item: Any, where: str) -> _Request:
    if isinstance(item, str):
        item = {"prompt": item}
    if not isinstance(item, dict):
        raise ConfigError(f"workload {where} is not an object", f"expected {ACCEPTED}")
    given = [key for key in _FORMS if key in item]
    if len(given) != 1:
        found = " and ".join(given) or f"none of {', '.join(_FORMS)}"
        raise ConfigError(f"workload {where} has {found}", f"expected {ACCEPTED}; FILE:COLUMN names another field")
    category = _UNLABELLED if item.get("category") in (None, "") else item["category"]
    if not isinstance(category, str) or not category.strip():
        raise ConfigError(f"workload {where}: category is not a name", 'give "category" as a non-empty string')
    form = given[0]
    said = _said(item[form], form, where)
    asked = _until_first_answer(said) if form in _LOGS else _without_last_answer(said)
    unused = {message.role for message in said[len(asked) :]}
    return _Request(
        category=category,
        place=where,
        messages=tuple(asked) if any(message.content.strip() for message in asked) else (),
        more_turns="user" in unused,
        answered="assistant" in unused,
    )


def _said(value: Any, form: str, where: str) -> list[Message]:
    """The whole conversation, as far as the item holds one."""
    if form == "body":
        return _batch_body(value, where)
    if form in ("prompt", "question"):
        return [Message(role="user", content=_content(value, form, where))]
    if not isinstance(value, list) or not value:
        raise ConfigError(f"workload {where}: {form} is no list, or an empty one", f"expected {ACCEPTED}")
    if form == "turns":
        return [Message(role="user", content=_content(turn, form, where)) for turn in value]
    return [_message(message, where) for message in value]


def _until_first_answer(said: list[Message]) -> list[Message]:
    """Of a log: up to the user's first turn, empty where an answer stands before it."""
    first = next((place for place, message in enumerate(said) if message.role in ("user", "assistant")), len(said))
    return said[: first + 1] if first < len(said) and said[first].role == "user" else []


def _without_last_answer(said: list[Message]) -> list[Message]:
    """Of a request: everything that leads to the answer that is asked for."""
    end = len(said)
    while end and said[end - 1].role == "assistant":
        end -= 1
    return said[:end]


def _batch_body(value: Any, where: str) -> list[Message]:
    """The body of an OpenAI batch request: messages of a chat, or the prompt of a completion."""
    given = [key for key in ("messages", "prompt") if isinstance(value, dict) and key in value]
    if not given:
        problem = f"workload {where}: body holds neither messages nor prompt"
        raise ConfigError(problem, "give chat or completion requests")
    return _said(value[given[0]], given[0], where)


def _message(message: Any, where: str) -> Message:
    """In OpenAI's words (role, content) or ShareGPT's (from, value)."""
    if not isinstance(message, dict):
        raise ConfigError(f"workload {where}: a message is not an object", 'give {"role": "user", "content": …}')
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    role = _SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role
    if role not in _ROLES:
        raise ConfigError(f"workload {where}: a message has no known role", f"roles are {', '.join(_ROLES)}")
    return Message(role=role, content=_content(content, "content", where))


def _content(value: Any, key: str, where: str) -> str:
    """A string, or OpenAI's list of parts where all of them are text; nothing is said by null."""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        if any(part.get("type") != "text" for part in value):
            raise ConfigError(f"workload {where}: {key} holds more than text", "images and sound are not supported")
        value = "".join(str(part.get("text", "")) for part in value)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"workload {where}: {key} is not text", "give a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"workload {where}: {key} holds half a surrogate pair", "fix the escape") from error
    return value
