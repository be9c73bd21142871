"""Bounds on speed and memory: `make bench`. Ratios within one run, interleaved; the machine should be idle.

`python -m tests.bench [--pair TARGET DRAFT] [--profile DIR]`: with a pair, its round is timed too (else the embedded
target drafts for itself); the profile is what `recommend` is timed on.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

PAIRS = 10


@dataclass(frozen=True)
class Bound:
    name: str
    value: float
    limit: float
    at_most: bool = True
    unit: str = ""

    @property
    def held(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratios(ours: Callable[[], object], theirs: Callable[[], object], pairs: int = PAIRS) -> list[float]:
    """Our seconds over theirs, in interleaved pairs whose order alternates, after one of each."""
    ours(), theirs()
    measured = []
    for number in range(pairs):
        first, second = (ours, theirs) if number % 2 else (theirs, ours)
        first_s, second_s = seconds(first), seconds(second)
        measured.append(first_s / second_s if number % 2 else second_s / first_s)
    return measured


def decoding(pair: list[str] | None) -> list[Bound]:
    """Our loop against transformers' own, plain and with K = 2 and 4; without a pair the target drafts for itself."""
    import torch

    from spectune import DraftModel, ModelScorer, load_model, speculative_decode
    from spectune.models.loading import prompt_token_ids
    from spectune.workload.prompts import load_workload

    cpu, dtype = torch.device("cpu"), "bfloat16" if pair else "auto"
    target, draft = (load_model(spec, device=cpu, dtype=dtype) for spec in pair or (None, None))
    prompt = prompt_token_ids(target, load_workload().prompts[0].messages)
    ids, network, length = torch.tensor([prompt]), target.network, 32
    fixed = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
    scorer, drafter, settings = ModelScorer(target), DraftModel(draft), draft.network.generation_config
    settings.num_assistant_tokens_schedule, settings.assistant_confidence_threshold = "constant", 0
    texts: dict[str, list[int]] = {}

    def ours(k: int) -> Callable[[], object]:
        def decode() -> None:
            texts["ours"] = speculative_decode(scorer, drafter, prompt, k, 0.0, max_new_tokens=length).token_ids

        return decode

    def theirs(k: int) -> Callable[[], object]:
        def generate() -> None:
            settings.num_assistant_tokens = k
            assisted = {"assistant_model": draft.network} if k else {}
            texts["theirs"] = network.generate(ids, **assisted, **fixed)[0, len(prompt) :].tolist()

        return generate

    bounds, name = [], "the pair's" if pair else "the embedded target's"
    for k in (0, 2, 4):
        ratio = 1 / statistics.median(ratios(ours(k), theirs(k), pairs=6))
        assert pair or texts["ours"] == texts["theirs"], "the texts differ"
        how = f"K = {k}" if k else "plain"
        bounds.append(Bound(f"{name} decoding, {how}, tokens/s over generate's", ratio, 0.98, at_most=False))
    return bounds


def recording() -> list[Bound]:
    """The tape of the embedded target against generate on the same prompts in one padded batch, tokens per second."""
    import torch

    from spectune import load_model
    from spectune.measure import SilentProgress
    from spectune.measure.recording import record_tape
    from spectune.measure.tape import TapePrompt
    from spectune.models.loading import prompt_token_ids
    from spectune.models.sampling import Sampling
    from spectune.models.scoring import left_padded
    from spectune.workload.prompts import load_workload

    torch.set_num_threads(os.cpu_count() or 1)
    target, length, bounds = load_model(None, device=torch.device("cpu")), 32, []
    target.network.generation_config.eos_token_id = None
    for batch in (8, 64):
        prompts = [
            TapePrompt(id=prompt.id, category="", token_ids=prompt_token_ids(target, prompt.messages))
            for prompt in load_workload().prompts[:batch]
        ]
        ids, mask = left_padded([prompt.token_ids for prompt in prompts], target.device)
        fixed = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False, "pad_token_id": 0}
        slower = ratios(
            lambda prompts=prompts: record_tape(target, prompts, [Sampling()], length, 0, SilentProgress()),
            lambda ids=ids, mask=mask, fixed=fixed: target.network.generate(ids, attention_mask=mask, **fixed),
            pairs=4 if batch == 8 else 2,
        )
        name = f"recording at batch {batch}, tokens/s over generate's"
        bounds.append(Bound(name, 1 / statistics.median(slower), 1.0, at_most=False))
    return bounds


MAX_K = 8
GRID = ((["ngram"], 1 / 7), (["ngram", "ngram:min=2,max=4", "layers:10", "layers:20"], 1 / 20))


def grid(folder: Path) -> list[Bound]:
    """What a profile takes against really decoding every setting: 12 prompts of 32 tokens, T = 0 and 1, K = 1..8.

    Of the grid a draft's K = 1 and 8 and plain decoding are timed at T = 0; the other K lie on a line between, T = 1 is
    taken to be as long. Models are loaded once in both.
    """
    import torch

    from spectune import ModelScorer, load_model, speculative_decode
    from spectune.cli.app import run
    from spectune.drafting import open_draft
    from spectune.drafting_spec import draft_spec
    from spectune.models.loading import prompt_token_ids
    from spectune.workload.prompts import load_workload

    target = load_model(None, device=torch.device("cpu"))
    workload = folder / "twelve.jsonl"
    lines = [json.dumps({"prompt": prompt.messages[0].content}) for prompt in load_workload().prompts[:16]]
    workload.write_text("\n".join(lines))
    prompts = [prompt_token_ids(target, prompt.messages) for prompt in load_workload(str(workload)).profiled]
    assert len(prompts) == 12

    def cell(spec: str, k: int) -> float:
        draft = open_draft(draft_spec(spec), target, lambda _: target)

        def decode() -> None:
            for prompt in prompts:
                speculative_decode(ModelScorer(target), draft, prompt, k, 0.0, max_new_tokens=32)

        return seconds(decode)

    bounds, plain_s = [], cell("ngram", 0)
    for drafts, limit in GRID:
        spent = plain_s + sum(MAX_K * (cell(spec, 1) + cell(spec, MAX_K)) / 2 for spec in drafts)
        options = [f"--draft={spec}" for spec in drafts] + ["--temperature=0", "--temperature=1", "--budget-s=30"]
        output = folder / f"grid-{len(drafts)}"
        arguments = ["profile", f"--workload={workload}", "--max-new-tokens=32", f"--max-k={MAX_K}", *options]
        profiled = seconds(lambda: run([*arguments, "-o", str(output)]))  # noqa: B023 - called at once
        name = f"a profile of {len(drafts)} draft{'s' if len(drafts) > 1 else ''}, over the grid's {2 * spent:,.0f} s"
        bounds.append(Bound(name, profiled / (2 * spent), limit))
    return bounds


def rounds(pair: list[str] | None) -> list[Bound]:
    """A whole round at K = 4 over its own forwards."""
    import torch

    from spectune import DraftModel, load_model
    from spectune.choice import chain
    from spectune.measure.rounds import TimedRounds
    from spectune.models.sampling import Sampling

    cpu, dtype = torch.device("cpu"), "bfloat16" if pair else "auto"
    target, draft = (load_model(spec, device=cpu, dtype=dtype) for spec in pair or (None, None))
    timed = TimedRounds(target, DraftModel(draft), list(range(100, 200)), 0)
    bounds = []
    for temperature in (0.0, 1.0):
        samples = [timed.seconds(chain(4), Sampling(temperature=temperature)) for _ in range(PAIRS + 1)][1:]
        ratio = statistics.median(whole / (whole - outside) for outside, whole in samples)
        name = "the pair's" if pair else "the embedded target's"
        bounds.append(Bound(f"{name} round at T = {temperature:g}, seconds over its forwards'", ratio, 1.05))
    return bounds


_BIG = """
import json, resource, sys, time
from pathlib import Path
from spectune.decide.plan import recommend
from spectune.profile.store import load_profile
profile = load_profile(Path(sys.argv[1]))
began = time.perf_counter()
recommend(profile)
spent = time.perf_counter() - began
print(json.dumps([spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9]))
"""


def planning(folder: Path) -> list[Bound]:
    """Replay and plan, alone in a process: 8,000 continuations of 128 tokens, one draft, K = 1..16, 2,000 resamples."""
    from spectune.profile.costs import RESAMPLES
    from tests.profiles import make_profile

    assert RESAMPLES == 2000
    make_profile(folder / "big", {0.0: 0.8}, prompts=8000, tokens=128, max_k=16)
    done = subprocess.run([sys.executable, "-c", _BIG, folder / "big"], capture_output=True, text=True, check=True)
    spent, gigabytes = json.loads(done.stdout)
    return [
        Bound("replay and plan 8,000 × 128, K = 1..16", spent, 3.0, unit=" s"),
        Bound("its memory", gigabytes, 1.0, unit=" GB"),
    ]


def trees() -> list[Bound]:
    """The best tree of 256 nodes and depth 12 along 54 texts of 64 tokens, by every way of building, each replayed."""
    import numpy as np

    from spectune.decide.trees import best_replayed

    rng = np.random.default_rng(0)
    ranks = rng.geometric(rng.choice([0.4, 0.8], 54), (64, 54))
    spent = statistics.median(seconds(lambda: best_replayed(ranks, 256, 12, np.full(54, 52))) for _ in range(5))
    return [Bound("the best tree of 256 nodes and depth 12", spent, 1.0, unit=" s")]


def starting(profile: Path, folder: Path) -> list[Bound]:
    """Whole processes: `recommend`, and `--help` against a bare typer app."""
    bare = folder / "bare.py"
    bare.write_text("import typer\napp = typer.Typer()\n\n@app.command()\ndef main() -> None:\n    pass\n\napp()\n")
    skill = folder / "skill.md"

    def process(*arguments: object) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, check=False)

    recommended = process("-m", "spectune", "recommend", profile, "-o", skill)
    recommended()
    spent = statistics.median(seconds(recommended) for _ in range(5))
    assert skill.exists(), f"{profile} gives no recommendation"
    code = "import sys; from spectune.cli.app import run; run(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "recommend", profile, "-o", skill]
    torch_too = subprocess.run(command, capture_output=True, check=False).returncode
    started = statistics.median(ratios(process("-m", "spectune", "--help"), process(bare, "--help")))
    return [
        Bound("recommend, with its pictures", spent, 2.5, unit=" s"),
        Bound("recommend imports torch", torch_too, 0),
        Bound("--help over a bare typer app's", started, 1.5),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", nargs=2, metavar=("TARGET", "DRAFT"))
    parser.add_argument("--only", action="append", choices=("start", "tree", "decode", "record", "grid"))
    parser.add_argument("--profile", type=Path, default=Path("profiles/demo"))
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{date.today()} · {platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profile = asked.profile
        if not (profile / "profile.json").exists():
            from tests.profiles import make_profile

            print(f"no profile at {profile}: a made-up one of 54 prompts stands in")
            make_profile(folder / "demo", {0.0: 0.7, 1.0: 0.3}, prompts=54, max_k=8, tokens=48)
            profile = folder / "demo"
        parts = {
            "start": lambda: [*starting(profile, folder), *planning(folder)],
            "tree": trees,
            "decode": lambda: [*decoding(asked.pair), *rounds(asked.pair)],
            "record": recording,
            "grid": lambda: grid(folder),
        }
        bounds = [bound for part in asked.only or parts for bound in parts[part]()]
    for bound in bounds:
        sign = "≤" if bound.at_most else "≥"
        mark = "ok  " if bound.held else "MISS"
        print(f"{mark} {bound.name}: {bound.value:.3f}{bound.unit} ({sign} {bound.limit:g})")
    return 0 if all(bound.held for bound in bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
