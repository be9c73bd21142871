"""What the figures depend on: hardware, threads, versions, load."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from spectune.models.loading import LanguageModel
from spectune.profile.manifest import Environment, ModelRecord

_BUSY = 0.5  # of the cores


def environment(model: LanguageModel) -> Environment:
    """The machine and software as they are now."""
    return Environment(
        hardware=_hardware(model.device),
        device=str(model.device),
        threads=torch.get_num_threads(),
        dtype=dtype_name(model),
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        versions={name: version(name) for name in ("torch", "transformers", "numpy")},
        git_commit=_git_commit(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def other_work() -> str | None:
    """A line where something else runs: timings are noisy then, whatever the budget."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load < _BUSY * cores:
        return None
    return f"other work runs here (load {load:.1f} on {cores} cores): timings will be noisy; best wait until it ends"


def model_record(model: LanguageModel) -> ModelRecord:
    """Which weights, for the profile."""
    return ModelRecord(
        name=model.name,
        architecture=type(model.network).__name__,
        parameters=model.network.num_parameters(),
        dtype=dtype_name(model),
        vocab_size=model.vocab_size,
        embedding_rows=model.network.config.get_text_config().vocab_size,
        max_positions=model.max_positions,
        revision=model.revision,
        digest=model.digest,
    )


def dtype_name(model: LanguageModel) -> str:
    """`float32`, `bfloat16`, …"""
    return str(model.dtype).removeprefix("torch.")


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _git_commit() -> str | None:
    """Of the folder the command runs in."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
