"""spectune: whether and how to use speculative decoding, told from measurement."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "speculative_decode": "spectune.decoding.decode",
    "load_model": "spectune.models.loading",
    "ModelScorer": "spectune.models.scoring",
    "DraftModel": "spectune.drafting.draft_model",
    "NgramDrafter": "spectune.drafting.ngram",
    "load_profile": "spectune.profile.store",
    "load_workload": "spectune.workload.prompts",
    "recommend": "spectune.decide.plan",
    "replay": "spectune.replay",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Load public names when they are first used, so that `import spectune` stays instant."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'spectune' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
