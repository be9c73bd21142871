"""`make gpu`: profile, recommend, confirm and repeat the costs on a CUDA device, without network, in under 8 minutes.

Random weights in the shapes of Qwen3-8B and Qwen3-0.6B: costs are real, acceptance is not.

Where there is an index:  make gpu-wheels                           fills .gpu-wheels for CPython 3.12 (GPU_PYTHON)
On the GPU's machine:     make gpu PYTHON=python3 GPU="--keep DIR"  with the torch and transformers of that python
To rehearse without one:  make gpu GPU=--cpu

The folder .gpu-wheels goes along with the checkout; it is not needed where the machine lacks nothing. `--keep DIR`
keeps profile, skill and summary.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

SHAPES = {
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
}
COMMON = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
TINY = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "vocab_size": 90}
SMALL = {name: {**shape, **TINY} for name, shape in SHAPES.items()}


def save_random(folder: Path, shape: dict[str, int], device: str) -> str:
    """A checkpoint of that shape with a word tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from tests.checkpoints import save_tokenizer

    torch.manual_seed(0)
    config = Qwen3Config(**{**COMMON, **shape}, tie_word_embeddings=shape["hidden_size"] < 4096, dtype="bfloat16")
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network.generation_config.eos_token_id = None
    network.save_pretrained(folder)
    save_tokenizer(folder)
    return str(folder)


def spectune(*arguments: str) -> None:
    from spectune.cli.app import run

    began = time.perf_counter()
    code = run(list(arguments))
    print(f"# spectune {' '.join(arguments[:2])}: exit {code}, {time.perf_counter() - began:.0f} s", flush=True)
    assert code in (0, 4), arguments


def repeatability(first: Path, second: Path) -> float:
    """The largest relative difference between two profiles' forward medians."""
    from spectune.profile.costs import CostCells
    from spectune.profile.store import load_profile

    before, after = (CostCells.of(load_profile(path).costs) for path in (first, second))
    forwards = [key for key in before.samples if key.part in ("cost_p", "cost_q") and key.draft != "ngram:min=1,max=4"]
    return max(abs(before.resampled(key)[0] / after.resampled(key)[0] - 1) for key in forwards)


def rehearse(
    folder: Path, device: str, shapes: dict[str, dict[str, int]], budget_s: str, max_k: int = 8
) -> dict[str, object]:
    from spectune.profile.store import load_profile
    from tests.checkpoints import WORDS

    began = time.perf_counter()
    target, draft = (save_random(folder / name, shape, device) for name, shape in shapes.items())
    print(f"# saved: {time.perf_counter() - began:.0f} s", flush=True)
    workload = folder / "w.jsonl"
    lines = [{"prompt": " ".join(WORDS[(i * 7 + j) % 61] for j in range(40 + 5 * i))} for i in range(24)]
    workload.write_text("\n".join(map(json.dumps, lines)))
    for name in ("first", "second"):
        spectune("profile", "--target", target, "--draft", draft, "--draft", "ngram", "--workload", str(workload),
                 "--device", device, "--dtype", "bfloat16", "--max-new-tokens", str(4 * max_k), "--batch", "8",
                 "--max-k", str(max_k),
                 "--budget-s", budget_s, "-o", str(folder / name))  # fmt: skip
    spectune("recommend", str(folder / "first"), "-o", str(folder / "skill.md"))
    spectune("confirm", str(folder / "first"), "--temperature", "0", "--draft", draft, "-k", str(max_k // 2))
    spectune("show", str(folder / "first"))
    manifest = load_profile(folder / "first").manifest
    return {
        "hardware": manifest.environment.hardware,
        "versions": manifest.environment.versions,
        "cost_repeatability": repeatability(folder / "first", folder / "second"),
        "seconds": time.perf_counter() - began,
    }


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="directory for the first profile, the skill and the summary")
    parser.add_argument("--cpu", action="store_true", help="rehearse on the CPU, with small shapes")
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        print("make gpu: there is no CUDA device here; skipped")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        kind = ("cpu", SMALL, "2") if options.cpu else ("cuda", SHAPES, "60")
        summary = rehearse(place, *kind)
        print(json.dumps(summary, indent=2))
        if options.keep:
            shutil.copytree(place / "first", options.keep / "profile")
            for file in [*place.glob("skill*"), place / "first" / "run.log"]:
                shutil.copy(file, options.keep)
            (options.keep / "summary.json").write_text(json.dumps(summary, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
