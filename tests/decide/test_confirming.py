"""Confirming as evidence: what is said of simulated machines whose true gain is known, with and without disturbance."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from spectune.decide.fit import fit_settings
from spectune.decide.plan import recommend
from spectune.decide.selection import MIN_GAIN, choose, decide
from spectune.decide.split import Split
from spectune.profile import schemas
from spectune.profile.costs import CostCells
from spectune.profile.store import Confirmed, Profile
from spectune.profile.tables import to_arrow
from tests.profiles import literal_rounds, make_profile

MAX_K, TOKENS, PROMPTS = 3, 48, 24
DRAFT_S, VERIFY_S, OVERHEAD_S = 0.02, 0.105, 0.002
MEAN, CONCENTRATION = 0.6, 2.0  # of the prompts' acceptance, a Beta
ANOTHER_TIME = 0.015  # what a round over a plain step is off by at any one time: standard deviation of logs
NOISE = 0.06  # of one forward or round
SIMULATED = 15  # profiles of each kind


@dataclass(frozen=True)
class World:
    """A true gain, and the seconds of a plain step that give it."""

    gain: float
    plain_s: float


def world(gain: float) -> World:
    """Rounds cost what they cost: a plain step is as long as makes the best K gain so much."""
    return World(gain=gain, plain_s=gain / best_rate())


@cache
def best_rate() -> float:
    """Tokens a second with the best K, over many prompts."""
    rng, rates = np.random.default_rng(1), []
    texts = [hits(rng) for _ in range(10_000)]
    for k in range(1, MAX_K + 1):
        rounds = sum(len(literal_rounds(text, k)) for text in texts)
        rates.append(len(texts) * TOKENS / rounds / round_s(k))
    return max(rates)


def round_s(k: int) -> float:
    return DRAFT_S * k + VERIFY_S + OVERHEAD_S


def hits(rng: np.random.Generator) -> np.ndarray:
    alpha = rng.beta(CONCENTRATION * MEAN, CONCENTRATION * (1 - MEAN))
    return rng.random(TOKENS) < alpha


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Profile:
    return make_profile(
        tmp_path_factory.mktemp("confirming") / "p", {0.0: 0.7}, max_k=MAX_K, tokens=TOKENS, end="limit"
    )


def profiled(base: Profile, true: World, rng: np.random.Generator) -> Profile:
    """A profile of such a machine: other prompts and timings each time."""
    texts = [hits(rng) for _ in range(PROMPTS)]
    costs = base.costs.to_pandas()
    part, tokens = costs["part"], costs["tokens"]
    seconds = np.select(
        [part == "cost_q", part == "overhead", part == "reference", tokens == 1],
        [DRAFT_S, np.where(costs["draft_steps"] == 0, 0.0, OVERHEAD_S), costs["seconds"], true.plain_s],
        VERIFY_S,
    )
    off = np.where(part.isin(["reference"]) | (tokens == 1) & (part == "cost_p"), 0.0, rng.normal(0, ANOTHER_TIME))
    costs["seconds"] = seconds * np.exp(off + rng.normal(0, NOISE, len(costs)))
    return replace(
        base,
        tape=to_arrow(tape_of(texts, base, "p"), schemas.TAPE),
        acceptance=to_arrow(evidence_of(texts, base), schemas.ACCEPTANCE),
        costs=to_arrow(costs, schemas.COSTS),
    )


def tape_of(texts: list[np.ndarray], base: Profile, name: str) -> pd.DataFrame:
    row = base.tape.slice(0, 1).to_pandas().iloc[0].to_dict()
    ids = {"token_ids": list(range(TOKENS)), "logprobs": np.zeros(TOKENS, np.float32), "tokens": TOKENS}
    return pd.DataFrame([{**row, **ids, "continuation": n, "prompt_id": f"{name}{n:03d}"} for n in range(len(texts))])


def evidence_of(texts: list[np.ndarray], base: Profile) -> pd.DataFrame:
    row = base.acceptance.slice(0, 1).to_pandas().iloc[0].to_dict()
    logs = [np.where(text, 0.0, -1e4).astype(np.float32) for text in texts]
    rows = zip(range(len(texts)), texts, logs, strict=True)
    return pd.DataFrame([{**row, "continuation": n, "argmax_hits": t, "draft_logprobs": q} for n, t, q in rows])


def confirmed(profile: Profile, true: World, held_out: int, slow: float, rng: np.random.Generator) -> Profile:
    """After its chosen K was decoded on other prompts of the same kind, by turns with plain decoding."""
    k = choose(fit_settings(profile, CostCells.of(profile.costs))).num_speculative_tokens
    texts, off = [hits(rng) for _ in range(held_out)], rng.normal(0, ANOTHER_TIME)
    runs, rounds = [], []
    for draft, depth in ((None, 0), ("small", k)):
        for number, text in enumerate(texts):
            accepted = literal_rounds(text, k) if draft else [0] * TOKENS
            took = (round_s(k) * np.exp(off) if draft else true.plain_s) * np.exp(rng.normal(0, NOISE, len(accepted)))
            took *= np.where(rng.random(len(accepted)) < slow, 10.0, 1.0)
            cycles = 6 * number + 6 * np.arange(len(accepted)) // len(accepted)
            runs.append((len(runs), draft, depth, depth, 0.0, "spectune", "eager", f"h{number:03d}", number))
            rounds += [
                (len(runs) - 1, *row) for row in zip(cycles, [depth] * len(accepted), accepted, took, strict=True)
            ]
    tables = Confirmed(
        tape=to_arrow(tape_of(texts, profile, "h"), schemas.TAPE),
        acceptance=to_arrow(evidence_of(texts, profile), schemas.ACCEPTANCE),
        runs=to_arrow(pd.DataFrame(runs, columns=schemas.RUNS.names), schemas.RUNS),
        rounds=to_arrow(pd.DataFrame(rounds, columns=schemas.ROUNDS.names), schemas.ROUNDS),
    )
    manifest = profile.manifest
    record = {"created_at": manifest.created_at, "environment": manifest.environment, "seed": 0, "prompts": held_out,
              "max_new_tokens": TOKENS, "command": "spectune confirm", "tables": {}}  # fmt: skip
    return replace(profile, confirmed=tables, manifest=manifest.model_copy(update={"confirmation": record_of(record)}))


def record_of(values):
    from spectune.profile.manifest import ConfirmationRecord

    return ConfirmationRecord(**values)


def by_veto(profile: Profile) -> str:
    """The rule before: the profile alone decides, and what gained too little when decoded is not recommended."""
    alone = decide(fit_settings(profile, CostCells.of(profile.costs)))
    runs = profile.confirmed.rounds.to_pandas().merge(profile.confirmed.runs.to_pandas(), on="run")
    seconds = runs.groupby(runs["draft"].isna())["seconds"].sum()
    return "insufficient-data" if seconds[True] / seconds[False] <= MIN_GAIN else alone.verdict


def simulated(base: Profile, gain: float, held_out: int, slow: float, count: int) -> dict[str, list]:
    true, told = world(gain), {"now": [], "before": [], "gain": [], "machine": []}
    for seed in range(count):
        rng = np.random.default_rng([seed, held_out, round(100 * gain)])
        profile = confirmed(profiled(base, true, rng), true, held_out, slow, rng)
        answer = recommend(profile)
        told["now"].append(answer.verdict)
        told["before"].append(by_veto(profile))
        told["gain"].append(answer.speedup.estimate)
        told["machine"].append(answer.confirmation.machine)
    return told


def share(verdicts: list[str]) -> float:
    return sum(verdict == "speculate" for verdict in verdicts) / len(verdicts)


@pytest.mark.parametrize("held_out", [12, 48])
def test_gains_are_found_more_often_than_by_a_veto_and_never_where_there_are_none(base, held_out) -> None:
    wrong, right = [], []
    for slow in (0.0, 0.05):
        for gain in (0.90, 1.00, 1.05, 1.15, 1.3):
            told = simulated(base, gain, held_out, slow, SIMULATED)
            print(
                f"{held_out} held out, gain {gain}, slowed {slow}: speculate {share(told['now']):.3f}, "
                f"by the veto {share(told['before']):.3f}; stated {np.median(told['gain']):.3f}"
            )
            assert set(told["machine"]) == {"steady"}
            if gain <= MIN_GAIN:
                wrong += told["now"]
            if gain == 1.3:
                right.append((share(told["now"]), share(told["before"])))
    assert share(wrong) <= 0.05
    assert sum(now for now, _ in right) > sum(before for _, before in right)


def test_slowed_rounds_hardly_move_the_stated_gain(base) -> None:
    calm, hit = (np.array(simulated(base, 1.3, 12, slow, SIMULATED)["gain"]) for slow in (0.0, 0.05))
    shift = float(np.median(hit / calm) - 1)
    print(f"one round in twenty slowed tenfold moves the stated gain by {shift:+.4f} in the median")
    assert abs(shift) <= 0.02


@pytest.mark.parametrize(
    ("split", "part", "says"),
    [
        (Split(tokens=1.0, plain_step=1.0, round=1.08), "a round", "a round, which takes 1.08 times as long"),
        (Split(tokens=1.02, plain_step=0.9, round=1.03), "a plain step", "a plain step, which takes 0.90 times"),
        (Split(tokens=0.9, plain_step=1.0, round=1.02), "tokens a round", "tokens a round, 0.90 times as many"),
        (Split(tokens=0.9, plain_step=1.0, round=1.0, replay_z=1.5), "tokens a round", "as other texts by chance have"),
        (Split(tokens=0.9, plain_step=1.0, round=1.0, replay_z=9.0), "tokens a round", "chance does not explain"),
        (Split(tokens=1.0, plain_step=1.3, round=1.3), None, None),  # a slower machine misses nothing
    ],
)
def test_a_miss_is_put_down_to_one_part(split, part, says) -> None:
    assert split.part == part
    assert split.sentence is None if says is None else says in split.sentence
