"""Decode held-out prompts for real, plainly and speculatively by turns, so that predictions meet a clock."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from spectune.checkpoints.embedded import EMBEDDED
from spectune.choice import Choice, chain, plain
from spectune.decoding.decode import Round, read_prompt, speculative_rounds
from spectune.drafting import Continuation, Drafter, open_draft
from spectune.drafting_spec import draft_spec
from spectune.errors import ConfigError, ProfileError
from spectune.measure import EAGER, OWN_ENGINE, Progress
from spectune.measure.acceptance import acceptance_table
from spectune.measure.environment import environment
from spectune.measure.rounds import Stopwatch
from spectune.measure.source import LocalTarget, TextSource
from spectune.measure.tape import TapePrompt, scored_rows, tape_table, without_text
from spectune.models.devices import resolve_device
from spectune.models.loading import LanguageModel, load_model
from spectune.models.sampling import Sampling
from spectune.models.scoring import ModelScorer
from spectune.profile import schemas
from spectune.profile.manifest import ModelRecord
from spectune.profile.store import Profile, require_replaceable, save_confirmation
from spectune.workload.prompts import load_workload

_TURN_TOKENS = 8  # what each run decodes before the next one's turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmRequest:
    """What to decode: trials (plain decoding comes along), on at most `prompts` of the held-out ones."""

    directory: Path
    trials: Sequence[Choice]
    prompts: int | None
    max_new_tokens: int
    seed: int
    command: str
    trust_remote_code: bool = False
    workload: str | None = None  # where the prompts of a profile without text are read; by default where they were


def confirm_profile(profile: Profile, request: ConfirmRequest, progress: Progress) -> Profile:
    """Decode, and add what was seen to the profile. Raises: SpectuneError; the profile is then as it was."""
    require_replaceable(request.directory)
    chosen = _chosen(profile, request)
    if len(chosen) < len(profile.held_out["category"].unique()):
        progress.say("fewer prompts than categories: the prediction is for the whole mix, the run for a part of it")
    model = _same_model(profile.manifest.target, profile, request, progress)
    target = LocalTarget(model)
    prompts = _prompts(chosen, target, profile, request)
    drafts = _drafts(model, profile, request, progress)
    runs = _decode_all(model, drafts, prompts, profile, request, progress)
    tables = _tables(runs, target, drafts, profile, progress)
    record = {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(model).model_dump(),
        "seed": request.seed,
        "prompts": len(prompts),
        "max_new_tokens": request.max_new_tokens,
        "command": request.command,
    }
    return save_confirmation(request.directory, record, tables)


def _chosen(profile: Profile, request: ConfirmRequest) -> pd.DataFrame:
    """Held-out prompts, the first of each category in turn, so that few still cover all of them."""
    table: pd.DataFrame = profile.held_out.to_pandas()
    if table.empty:
        raise ConfigError("the profile holds no prompts back", "profile four or more prompts of a category")
    table["turn"] = table.groupby("category").cumcount()
    return table.sort_values("turn", kind="stable").head(request.prompts or len(table))


def _prompts(chosen: pd.DataFrame, target: TextSource, profile: Profile, request: ConfirmRequest) -> list[TapePrompt]:
    """As the profile holds them; where it holds no text, as the workload does."""
    columns = [chosen[name].tolist() for name in ("prompt_id", "category", "prompt_token_ids")]
    if chosen["prompt_token_ids"].isna().any():
        columns[2] = _read_again(columns[0], target, profile, request.workload or profile.manifest.run.workload)
    return [
        TapePrompt(id=prompt_id, category=category, token_ids=[int(token) for token in token_ids])
        for prompt_id, category, token_ids in zip(*columns, strict=True)
    ]


def _read_again(prompt_ids: list[str], target: TextSource, profile: Profile, workload: str) -> list[list[int]]:
    """The prompts of a profile without text, found by their hashes.

    Raises: ConfigError where they are not there; ProfileError where the target reads them otherwise now.
    """
    if target.facts.chat_template_digest != profile.manifest.workload.chat_template_digest:
        raise ProfileError("the target's chat template is another than when it was profiled", "profile again")
    written = {prompt.id: prompt for prompt in load_workload(workload).prompts}
    missing = len(set(prompt_ids) - set(written))
    if missing:
        problem = f"the profile holds no text, and {missing} of its held-out prompts are not in {workload}"
        raise ConfigError(problem, "give the prompts that were profiled with --workload")
    return [target.prompt_token_ids(written[prompt_id].messages) for prompt_id in prompt_ids]


def _same_model(record: ModelRecord, profile: Profile, request: ConfirmRequest, progress: Progress) -> LanguageModel:
    """The model of a record, loaded as it was profiled. Raises: ProfileError where its weights are others now."""
    env = profile.manifest.environment
    model = load_model(
        None if record.name == EMBEDDED else record.name,
        device=resolve_device(env.device),
        dtype=record.dtype or "auto",
        trust_remote_code=request.trust_remote_code,
        say=progress.say,
    )
    if (model.digest, model.revision) != (record.digest, record.revision):
        raise ProfileError(f"{record.name} is not the model that was profiled", "run spectune profile again")
    return model


def _drafts(target: LanguageModel, profile: Profile, request: ConfirmRequest, progress: Progress) -> dict[str, Drafter]:
    """Every profiled draft, the models as they were profiled: those that are not decoded with are replayed."""
    records = {draft.model.name: draft.model for draft in profile.manifest.drafts if draft.model}

    def load(name: str) -> LanguageModel:
        return _same_model(records[name], profile, request, progress)

    return {draft.spec: open_draft(draft_spec(draft.spec), target, load) for draft in profile.manifest.drafts}


def _decode_all(
    target: LanguageModel,
    drafts: Mapping[str, Drafter],
    prompts: Sequence[TapePrompt],
    profile: Profile,
    request: ConfirmRequest,
    progress: Progress,
) -> list["_Run"]:
    """Timed runs, by turns."""
    by_temperature: dict[float, list[Choice]] = {}
    for trial in request.trials:
        by_temperature.setdefault(trial.temperature, [plain(trial.temperature)]).append(trial)
    count = sum(map(len, by_temperature.values())) * len(prompts) * request.max_new_tokens
    progress.start("confirm", count, "tokens")
    rng, settings, runs = np.random.default_rng(request.seed), profile.manifest.settings, list["_Run"]()
    cycle = 0
    decoded_with = {trial.draft: drafts[trial.draft] for trial in request.trials if trial.draft is not None}
    for number, prompt in enumerate(prompts):
        read = _Read(target, decoded_with, prompt)
        for temperature, trials in by_temperature.items():
            sampling = Sampling(temperature=temperature, top_p=settings.top_p, top_k=settings.top_k)
            if number == 0:  # what runs first is slow: decode a little that does not count
                _by_turns(read.runs(trials, sampling, _TURN_TOKENS, rng), rng)
            runs += read.runs(trials, sampling, request.max_new_tokens, rng)
            cycle = _by_turns(runs[-len(trials) :], rng, cycle)
            progress.advance(len(trials) * request.max_new_tokens)
    return runs


def _tables(
    runs: Sequence["_Run"], target: TextSource, drafts: Mapping[str, Drafter], profile: Profile, progress: Progress
) -> dict[str, pd.DataFrame]:
    """What was written, each text once; evidence of every draft on plain texts, of a run's own draft on its text."""
    numbers: dict[tuple[str, float, tuple[int, ...]], int] = {}
    own = [numbers.setdefault(run.text, len(numbers)) for run in runs]
    first = dict(zip(reversed(own), reversed(runs), strict=True))
    continuations = [first[number].continuation for number in range(len(numbers))]
    wanted = {
        spec: {number for number, run in zip(own, runs, strict=True) if run.trial.draft in (None, spec)}
        for spec in drafts
    }
    categories = {run.prompt.id: run.prompt.category for run in runs}
    tape = tape_table(scored_rows(continuations, target.scored(continuations), categories, target.facts.eos_token_ids))
    max_k = profile.manifest.settings.max_k
    rows = [run.row(number, text) for number, (run, text) in enumerate(zip(runs, own, strict=True))]
    rounds = [(number, *one) for number, run in enumerate(runs) for one in run.rounds]
    return {
        "confirmed_tape": without_text(tape) if profile.manifest.run.no_text else tape,
        "confirmed_acceptance": acceptance_table(target, drafts, continuations, chain(max_k), progress, wanted=wanted),
        "confirmed_runs": pd.DataFrame.from_records(rows, columns=schemas.RUNS.names),
        "confirmed_rounds": pd.DataFrame.from_records(rounds, columns=schemas.ROUNDS.names),
    }


class _Read:
    """A prompt that target and drafts have read, once for all its runs."""

    def __init__(self, target: LanguageModel, drafts: Mapping[str, Drafter], prompt: TapePrompt) -> None:
        self._target, self._prompt = target, prompt
        idle = np.random.default_rng(0)
        self._draftings = {spec: draft.open(idle) for spec, draft in drafts.items()}
        layers = sorted({layer for draft in drafts.values() for layer in draft.layers})
        self._sequence = read_prompt(ModelScorer(target), self._draftings.values(), prompt.token_ids, layers)
        for drafting in self._draftings.values():
            drafting.propose(prompt.token_ids, chain(1), Sampling())

    def runs(
        self, trials: Sequence[Choice], sampling: Sampling, max_new_tokens: int, rng: np.random.Generator
    ) -> list["_Run"]:
        """One run for each trial."""
        return [
            self._run(trial, sampling, max_new_tokens, own)
            for trial, own in zip(trials, rng.spawn(len(trials)), strict=True)
        ]

    def _run(self, trial: Choice, sampling: Sampling, max_new_tokens: int, rng: np.random.Generator) -> "_Run":
        token_ids = list(self._prompt.token_ids)
        drafting = None if trial.draft is None else self._draftings[trial.draft].fork(rng)
        rounds = speculative_rounds(
            self._sequence.fork(), drafting, token_ids, trial.shape, sampling, rng, self._target.name
        )
        return _Run(self._target, self._prompt, rounds, token_ids, trial, sampling, max_new_tokens)


def _by_turns(runs: Sequence["_Run"], rng: np.random.Generator, cycle: int = 0) -> int:
    """Each run decodes a few tokens and waits for the others, in a fresh order each time: drift touches all alike.

    Returns the number of the next cycle.
    """
    going = list(runs)
    while going:
        for place in rng.permutation(len(going)):
            going[place].take_turn(cycle)
        going, cycle = [run for run in going if not run.done], cycle + 1
    return cycle


class _Run:
    """One prompt decoded with one trial; its clock runs during rounds only, the prompt having been read before."""

    def __init__(
        self,
        target: LanguageModel,
        prompt: TapePrompt,
        rounds: Iterator[Round],
        token_ids: list[int],
        trial: Choice,
        sampling: Sampling,
        max_new_tokens: int,
    ) -> None:
        self.prompt, self.trial, self.rounds = prompt, trial, list[tuple[int, int, int, float]]()
        self._sampling, self._limit, self._stopwatch = sampling, max_new_tokens, Stopwatch(target.device)
        self._ends: Collection[int] = target.eos_token_ids
        self._rounds, self._token_ids = rounds, token_ids
        self.done = False

    @property
    def _written(self) -> list[int]:
        return self._token_ids[len(self.prompt.token_ids) :]

    @property
    def text(self) -> tuple[str, float, tuple[int, ...]]:
        """Prompt, temperature and what is kept of the text: up to its end or the limit."""
        tokens = self._written[: self._limit]
        end = next((place for place, token in enumerate(tokens) if token in self._ends), len(tokens))
        return self.prompt.id, self.trial.temperature, tuple(tokens[: end + 1])

    @property
    def continuation(self) -> Continuation:
        """The text as evidence is collected on it."""
        prompt_id, _, token_ids = self.text
        return Continuation(
            prompt_id=prompt_id, prompt_token_ids=self.prompt.token_ids, token_ids=token_ids, sampling=self._sampling
        )

    def take_turn(self, cycle: int) -> None:
        """Decode some more tokens, each round against the clock."""
        goal = len(self._token_ids) + _TURN_TOKENS
        while len(self._token_ids) < goal and not self.done:
            made: list[Round] = []
            seconds = self._stopwatch.seconds(lambda made=made: made.append(next(self._rounds)))  # type: ignore[misc]
            self.rounds.append((cycle, made[0].proposed, made[0].accepted, seconds))
            self.done = len(self._written) >= self._limit or any(token in self._ends for token in made[0].token_ids)
        if self.done:
            self._rounds = iter(())  # its caches go

    def row(self, number: int, continuation: int) -> dict[str, object]:
        """As schemas.RUNS has it."""
        return {
            "run": number,
            "draft": self.trial.draft,
            "depth": self.trial.shape.depth,
            "nodes": self.trial.shape.nodes,
            "temperature": self.trial.temperature,
            "engine": OWN_ENGINE,
            "mode": EAGER,
            "prompt_id": self.prompt.id,
            "continuation": continuation,
        }
