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


def ratios(ours: Callable[[], object], theirs: Callable[[], object]) -> list[float]:
    """Our seconds over theirs, in interleaved pairs whose order alternates, after one of each."""
    ours(), theirs()
    found = []
    for number in range(PAIRS):
        first, second = (ours, theirs) if number % 2 else (theirs, ours)
        one, other = seconds(first), seconds(second)
        found.append(one / other if number % 2 else other / one)
    return found


def decoding() -> list[Bound]:
    """Our loop against transformers' own, on the embedded target; the draft is a copy of it."""
    import torch

    from spectune import DraftModel, ModelScorer, load_model, speculative_decode
    from spectune.models.loading import prompt_token_ids
    from spectune.workload.prompts import load_workload

    target, draft = (load_model(None, device=torch.device("cpu")) for _ in range(2))
    prompt = prompt_token_ids(target, load_workload().prompts[0].messages)
    ids, network, length = torch.tensor([prompt]), target.network, 40
    fixed = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
    scorer, drafter = ModelScorer(target), DraftModel(draft)
    copied = draft.network.generation_config
    copied.num_assistant_tokens, copied.num_assistant_tokens_schedule, copied.assistant_confidence_threshold = (
        4,
        "constant",
        0,
    )
    plain = ratios(
        lambda: speculative_decode(scorer, drafter, prompt, 0, 0.0, max_new_tokens=length),
        lambda: network.generate(ids, **fixed),
    )
    ours: list[int] = []
    theirs: list[int] = []

    def assisted() -> None:
        theirs[:] = network.generate(ids, assistant_model=draft.network, **fixed)[0, len(prompt) :].tolist()

    def speculative() -> None:
        ours[:] = speculative_decode(scorer, drafter, prompt, 4, 0.0, max_new_tokens=length).token_ids

    speculated = ratios(speculative, assisted)
    assert ours == theirs, "the texts differ"
    return [
        Bound("plain decoding, seconds over generate's", statistics.median(plain), 1.05),
        Bound(
            "speculative_decode K = 4, tokens/s over assisted generation's",
            1 / statistics.median(speculated),
            0.97,
            False,
        ),
    ]


def rounds(pair: list[str] | None) -> list[Bound]:
    """A whole round at K = 4 over its own forwards."""
    import torch

    from spectune import DraftModel, load_model
    from spectune.measure.rounds import TimedRounds
    from spectune.models.sampling import Sampling

    cpu, dtype = torch.device("cpu"), "bfloat16" if pair else "auto"
    target, draft = (load_model(spec, device=cpu, dtype=dtype) for spec in pair or (None, None))
    timed = TimedRounds(target, DraftModel(draft), list(range(100, 200)), 0)
    found = []
    for temperature in (0.0, 1.0):
        samples = [timed.seconds(4, Sampling(temperature=temperature)) for _ in range(PAIRS + 1)][1:]
        ratio = statistics.median(whole / (whole - outside) for outside, whole in samples)
        name = "the pair's" if pair else "the embedded target's"
        found.append(Bound(f"{name} round at T = {temperature:g}, seconds over its forwards'", ratio, 1.05))
    return found


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
        Bound("recommend", spent, 1.5, unit=" s"),
        Bound("recommend imports torch", torch_too, 0),
        Bound("--help over a bare typer app's", started, 1.5),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", nargs=2, metavar=("TARGET", "DRAFT"))
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
        bounds = [*starting(profile, folder), *planning(folder), *decoding(), *rounds(asked.pair)]
    for bound in bounds:
        sign = "≤" if bound.at_most else "≥"
        mark = "ok  " if bound.held else "MISS"
        print(f"{mark} {bound.name}: {bound.value:.3f}{bound.unit} ({sign} {bound.limit:g})")
    return 0 if all(bound.held for bound in bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
