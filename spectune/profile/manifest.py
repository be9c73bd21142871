"""profile.json as values: what was measured, where, with what settings. Strict: unknown keys are refused."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from spectune.choice import LONGEST
from spectune.drafting_spec import METHODS, Method
from spectune.profile.run import Run

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _distinct(values: list[float]) -> list[float]:
    if len(set(values)) < len(values):
        raise ValueError("a temperature stands there twice")
    return values


def _known_method(name: str) -> str:
    if name not in METHODS:
        raise ValueError(f"no drafting method is called {name!r}")
    return name


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Notice(_Record):
    """Something the reader of a figure must know, as a value; `advice` says what to do about it."""

    code: str
    message: str
    advice: str


class ModelRecord(_Record):
    """Which weights; null is what a served model does not tell."""

    name: str
    architecture: str | None
    parameters: Count | None
    dtype: str | None
    vocab_size: Count | None
    embedding_rows: Count | None = None  # padding included
    max_positions: Count | None
    revision: str | None  # on the hub
    digest: Sha256 | None  # of the files in a folder


class DraftRecord(_Record):
    """A draft under the SPEC it was given by; `model` is null for methods without one."""

    spec: str
    method: Annotated[str, AfterValidator(_known_method)]
    model: ModelRecord | None

    @property
    def drafting(self) -> Method:
        """What sets its method apart."""
        return METHODS[self.method]


class Environment(_Record):
    """Where the figures were measured."""

    hardware: str
    device: str  # cpu, cuda:0, …
    threads: Count  # of torch
    dtype: str
    platform: str
    versions: dict[str, str]  # of libraries, by name
    git_commit: str | None  # of the folder that the command ran in
    load_average: float | None  # of the last minute, when measuring began


MACHINE = ("hardware", "device", "threads")
"""Fields of Environment: costs in seconds are compared where they are equal."""
LASTING = (*MACHINE, "dtype", "versions")
"""Fields of Environment that another run in the same place has too."""


class WorkloadRecord(_Record):
    """Which prompts; the hash covers raw prompts and labels, the template's digest stands apart."""

    name: str
    hash: Sha256
    prompts: Count
    held_out: Count
    categories: dict[str, Count]  # prompts by label
    chat_template_digest: Sha256 | None


class Load(_Record):
    """What a forward runs on: sequences side by side, tokens cached in each."""

    batch: Annotated[int, Field(ge=1)]
    context_tokens: Annotated[int, Field(ge=0)]  # 0 where a prompt is read


class Settings(_Record):
    """What was asked for; costs are measured at each load, the first of which is the main one."""

    temperatures: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1), AfterValidator(_distinct)]
    default_temperature: float | None  # the target's own
    top_p: float  # 1 is off
    top_k: Count  # 0 is off
    max_k: Annotated[int, Field(ge=1, le=LONGEST)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    limit_tokens: Annotated[int, Field(ge=1)] | None  # where the workload's own requests end
    loads: Annotated[list[Load], Field(min_length=1)]
    budget_s: Annotated[float, Field(gt=0)]
    engine: str  # what the answer is for
    command: str  # as it was typed


class Counts(_Record):
    """What was recorded, and what was not."""

    continuations: Count
    tokens: Count
    skipped_prompts: Count  # too long for the models
    ended: Count  # continuations that end of themselves
    repeating: dict[str, Count]  # continuations that repeat one of their 8-grams, by temperature


class ConfirmationRecord(_Record):
    """When and how real decoding was compared with the prediction."""

    created_at: str
    environment: Environment
    seed: int
    prompts: Count
    max_new_tokens: Annotated[int, Field(ge=1)]
    command: str
    tables: dict[str, Sha256]


class Manifest(_Record):
    """profile.json."""

    schema_version: Literal[5]
    spectune_version: str
    created_at: str
    seed: int
    environment: Environment
    workload: WorkloadRecord
    target: ModelRecord
    drafts: list[DraftRecord]
    settings: Settings
    counts: Counts
    warnings: list[Notice]
    tables: dict[str, Sha256]  # digests of the files
    run: Run  # every option of spectune profile, by its name
    confirmation: ConfirmationRecord | None = None

    @property
    def padded_drafts(self) -> list[str]:
        """SPECs of draft models whose embedding has another number of rows than the target's, as far as both tell."""
        rows = self.target.embedding_rows
        own = {draft.spec: draft.model.embedding_rows for draft in self.drafts if draft.model}
        return [spec for spec, mine in own.items() if None not in (rows, mine) and mine != rows]
