"""Profiles made up for tests: a tape of random tokens, a draft that matches with a known probability, given costs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spectune.decide.fit import Setting, fit_settings
from spectune.profile import schemas
from spectune.profile.costs import CostCells
from spectune.profile.manifest import ConfirmationRecord, Load
from spectune.profile.store import Confirmed, Profile, save_profile
from spectune.profile.tables import rows_at, rows_where, to_arrow

CATEGORIES = ("code", "chat", "creative")
NGRAM = "ngram:min=1,max=4"
NGRAM_TREE = f"{NGRAM},branches=4"
READ_S = 0.2  # that the target takes for a token of a prompt; drafts take half of it


def fitted_settings(profile: Profile, loads: Sequence[Load] = ()) -> list[Setting]:
    return fit_settings(profile, CostCells.of(profile.costs), loads)


def manifest(
    temperatures: tuple[float, ...], max_k: int, drafts: list[dict[str, Any]], **changes: Any
) -> dict[str, Any]:
    model = {
        "name": "toy",
        "architecture": "ToyForCausalLM",
        "parameters": 1000,
        "dtype": "float32",
        "vocab_size": 50,
        "max_positions": 1024,
        "revision": None,
        "digest": None,
    }
    return {
        "schema_version": schemas.SCHEMA_VERSION,
        "spectune_version": "0.1.0",
        "created_at": "2026-11-30T00:00:00+00:00",
        "seed": 0,
        "environment": {
            "hardware": "toy cpu",
            "device": "cpu",
            "threads": 1,
            "dtype": "float32",
            "platform": "Linux",
            "versions": {"torch": "2.13.0"},
            "git_commit": None,
            "load_average": None,
        },
        "workload": {
            "name": "toy.jsonl",
            "hash": "0" * 64,
            "prompts": 48,
            "held_out": 12,
            "categories": {"code": 16, "chat": 16, "creative": 16},
            "chat_template_digest": None,
        },
        "target": model,
        "drafts": [{**draft, "model": model if draft["method"] == "draft_model" else None} for draft in drafts],
        "settings": {
            "temperatures": list(temperatures),
            "default_temperature": None,
            "top_p": 1.0,
            "top_k": 0,
            "max_k": max_k,
            "max_new_tokens": 64,
            "limit_tokens": None,
            "loads": [{"batch": 1, "context_tokens": 100}],
            "budget_s": 1.0,
            "engine": "spectune",
            "command": "spectune profile -o toy",
        },
        "counts": {"continuations": 0, "tokens": 0, "skipped_prompts": 0, "ended": 0, "repeating": {}},
        "run": {"temperature": list(temperatures), "max_k": max_k},
        "warnings": [],
        **changes,
    }


def make_profile(
    directory: Path,
    acceptance: dict[float, float],  # temperature → α of the draft model
    *,
    plain_s: float = 0.1,
    verify_s: float = 0.105,
    draft_s: float = 0.01,
    prompts: int = 36,
    max_k: int = 4,
    ngram_acceptance: float | None = None,
    tree_ranks: tuple[float, ...] | None = None,  # how likely the text goes on at the tree's 1st, 2nd, … open node
    tree_s: float | None = None,  # of verifying one; by default as any tokens
    noise: float = 0.005,
    tokens: int = 64,
    end: str = "cut",
    passes: int = 12,
    **changes: Any,
) -> Profile:
    rng = np.random.default_rng(7)
    drafts: list[dict[str, Any]] = [{"spec": "small", "method": "draft_model"}]
    if ngram_acceptance is not None:
        drafts.append({"spec": NGRAM, "method": "ngram"})
    if tree_ranks is not None:
        drafts.append({"spec": NGRAM_TREE, "method": "ngram_tree"})
    tape, evidence = [], []
    for temperature, alpha in acceptance.items():
        for prompt in range(prompts):
            row = len(tape)
            tape.append(_continuation(row, prompt, temperature, tokens, end, rng))
            evidence.append(_draft_model_row(row, tape[-1]["token_ids"], temperature, alpha, rng))
            if ngram_acceptance is not None:
                evidence.append(_ngram_row(row, ngram_acceptance, max_k, tokens, rng))
            if tree_ranks is not None:
                evidence.append(_tree_row(row, tree_ranks, max_k, tokens, rng))
    tables = {
        "tape": pd.DataFrame.from_records(tape),
        "acceptance": pd.DataFrame.from_records(evidence),
        "costs": _costs(drafts, tuple(acceptance), max_k, plain_s, verify_s, draft_s, noise, passes, rng, tree_s),
        "held_out": pd.DataFrame({"prompt_id": ["f" * 64], "category": ["code"], "prompt_token_ids": [[1, 2]]}),
    }
    return save_profile(manifest(tuple(acceptance), max_k, drafts, **changes), tables, directory)


def _continuation(
    row: int, prompt: int, temperature: float, tokens: int, end: str, rng: np.random.Generator
) -> dict[str, Any]:
    return {
        "continuation": row,
        "prompt_id": f"{prompt:064x}",
        "category": CATEGORIES[prompt % 3],
        "temperature": temperature,
        "end": end,
        "batch_rows": 64,
        "prompt_tokens": 3,
        "prompt_nats": 3.0,
        "prompt_token_ids": [1, 2, 3],
        "token_ids": rng.integers(0, 50, tokens).tolist(),
        "logprobs": np.full(tokens, 0.0 if temperature == 0 else -1.0, np.float32),
        "tokens": tokens,
    }


def _draft_model_row(
    row: int, token_ids: list[int], temperature: float, alpha: float, rng: np.random.Generator
) -> dict[str, Any]:
    hit = rng.random(len(token_ids)) < alpha
    ratio = np.where(temperature == 0, np.where(hit, 0.0, -1e4), np.log(max(alpha, 1e-9)) - 1.0)
    return {
        "draft": "small",
        "continuation": row,
        "draft_logprobs": ratio.astype(np.float32),
        "argmax_hits": hit,
        "ranks": np.where(hit, 1, 5).astype(np.int32),
        "proposed_tokens": None,
        "matched_tokens": None,
        "start_ranks": None,
    }


def _ngram_row(row: int, alpha: float, max_k: int, tokens: int, rng: np.random.Generator) -> dict[str, Any]:
    matched = np.minimum(rng.geometric(1 - alpha, tokens) - 1 if alpha < 1 else np.full(tokens, max_k), max_k)
    return {
        "draft": NGRAM,
        "continuation": row,
        "draft_logprobs": None,
        "argmax_hits": None,
        "ranks": None,
        "proposed_tokens": np.full(tokens, max_k, np.int16),
        "matched_tokens": matched.astype(np.int16),
        "start_ranks": None,
    }


def _tree_row(row: int, ranks: tuple[float, ...], max_k: int, tokens: int, rng: np.random.Generator) -> dict[str, Any]:
    """A text that goes on at one of the next nodes to be grown, or at none."""
    starts = []
    for _ in range(tokens):
        places, last = [], 0
        while (step := 1 + int(np.searchsorted(np.cumsum(ranks), rng.random()))) <= len(ranks) and last + step <= max_k:
            last += step
            places.append(last)
        starts.append(places)
    return {
        "draft": NGRAM_TREE,
        "continuation": row,
        "draft_logprobs": None,
        "argmax_hits": None,
        "ranks": None,
        "proposed_tokens": np.full(tokens, max_k, np.int16),
        "matched_tokens": np.array([len(places) for places in starts], np.int16),
        "start_ranks": starts,
    }


def _costs(
    drafts: list[dict[str, Any]],
    temperatures: tuple[float, ...],
    max_k: int,
    plain_s: float,
    verify_s: float,
    draft_s: float,
    noise: float,
    passes: int,
    rng: np.random.Generator,
    tree_s: float | None = None,
) -> pd.DataFrame:
    cells: list[tuple[str, str | None, float | None, int, float]] = [("cost_p", None, None, 1, plain_s)]
    cells += [("cost_p", None, None, n, verify_s) for n in range(2, max_k + 2)]
    if any(draft["method"] == "ngram_tree" for draft in drafts):
        cells += [("cost_p_tree", None, None, n, tree_s or verify_s) for n in {3, max_k + 1}]
    classes = sorted({min(t for t in temperatures if (t == 0) == greedy) for greedy in {t == 0 for t in temperatures}})
    cells += [("overhead", None, t, 0, 0.001) for t in classes]
    for draft in drafts:
        seconds = draft_s if draft["method"] == "draft_model" else 1e-4
        cells += [("cost_q", draft["spec"], None, n, seconds) for n in (1, 2)[: 2 if seconds == draft_s else 1]]
        cells += [
            ("overhead", draft["spec"], t, k, 0.002)
            for t in classes
            for k in sorted({1, 2, 4, max_k} & set(range(1, max_k + 1)))
        ]
    cells += [("reference", None, None, n, 0.01 * n) for n in (1, max_k + 1)]
    cells += [("read_p", None, None, n, READ_S * n) for n in (2, 4)]
    cells += [("read_q", draft["spec"], None, n, READ_S / 2 * n) for draft in drafts for n in (2, 4)]
    return pd.DataFrame.from_records(
        [
            {
                "part": part,
                "draft": draft,
                "temperature": temperature,
                "engine": "spectune",
                "mode": "eager",
                "draft_steps": tokens if part == "overhead" else None,
                "tokens": tokens + (part == "overhead"),
                "batch": 1,
                "context_tokens": 0 if part.startswith("read") else 100,
                "measurement_pass": number,
                "seconds": seconds * float(np.exp(rng.normal(0, noise))),
            }
            for part, draft, temperature, tokens, seconds in cells
            for number in range(passes)
        ]
    )


def decoded(
    profile: Profile, k: int, gain: float, plain_s: float = 0.1, slow: float = 0.0, noise: float = 0.0
) -> Profile:
    """The profile after a confirming run in which `k` tokens of the first draft gained `gain` at T = 0.

    The text of its first prompts is decoded again, literally; `slow`: this share of the rounds takes ten times as long.
    """
    tape = rows_where(profile.tape, temperature=0.0).slice(0, 8)
    texts, draft = tape["continuation"].to_pylist(), profile.manifest.drafts[0].spec
    kept = [row for row, text in enumerate(profile.acceptance["continuation"].to_pylist()) if text in texts]
    evidence = rows_at(profile.acceptance, np.array(kept))
    hits = rows_where(evidence, draft=draft)["argmax_hits"].to_pylist()
    accepted = [literal_rounds(np.array(row), k) for row in hits]
    round_s = tape["tokens"].to_numpy().sum() * plain_s / gain / sum(map(len, accepted))
    runs, rounds, rng = [], [], np.random.default_rng(3)
    for spec, depth, seconds in ((None, 0, plain_s), (draft, k, round_s)):
        for place, text in enumerate(texts):
            own = [0] * len(hits[place]) if spec is None else accepted[place]
            runs.append({"draft": spec, "depth": depth, "nodes": depth, "continuation": text, "run": len(runs)})
            rounds += [
                {"run": len(runs) - 1, "cycle": 8 * place + 8 * number // len(own), "proposed": depth, "accepted": kept,
                 "seconds": seconds * float(np.exp(rng.normal(0, noise))) * (10.0 if rng.random() < slow else 1.0)}
                for number, kept in enumerate(own)
            ]  # fmt: skip
    frame = pd.DataFrame.from_records(runs).assign(temperature=0.0, engine="spectune", mode="eager")
    frame["prompt_id"] = tape["prompt_id"].to_pylist() * 2
    record = ConfirmationRecord(
        created_at=profile.manifest.created_at,
        environment=profile.manifest.environment,
        seed=0,
        prompts=8,
        max_new_tokens=64,
        command="spectune confirm",
        tables={},
    )
    confirmed = Confirmed(
        tape=tape,
        acceptance=evidence,
        runs=to_arrow(frame, schemas.RUNS),
        rounds=to_arrow(pd.DataFrame.from_records(rounds), schemas.ROUNDS),
    )
    manifest = profile.manifest.model_copy(update={"confirmation": record})
    return replace(profile, manifest=manifest, confirmed=confirmed)


def literal_rounds(hits: np.ndarray, k: int) -> list[int]:
    """Proposals accepted in each round of a text whose draft guesses right where it says so."""
    accepted, start = [], 0
    while start < len(hits):
        run = hits[start : start + k]
        accepted.append(len(run) if run.all() else int(np.argmin(run)))
        start += accepted[-1] + 1
    return accepted
