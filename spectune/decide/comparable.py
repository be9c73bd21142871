"""Whether two profiles can be compared, and in what they differ by their own account."""

from collections.abc import Sequence

from spectune.errors import ProfileError
from spectune.profile.manifest import MACHINE, Manifest, ModelRecord
from spectune.profile.store import Profile


def require_comparable(baseline: Manifest, candidate: Manifest) -> None:
    """Raises: ProfileError naming what is not the same."""
    for (name, before), now in zip(_subject(baseline).items(), _subject(candidate).values(), strict=True):
        if before != now:
            problem = f"the profiles are not comparable: another {name}, {before} and {now}"
            raise ProfileError(problem, "profile the candidate with the baseline's run file or --tape")
    specs = [draft.spec for draft in candidate.drafts]
    for draft in baseline.drafts:
        if draft.spec not in specs:
            raise ProfileError(f"the candidate lacks the draft {draft.spec}", f"profile it with --draft {draft.spec}")
    longest, needed = candidate.settings.max_k, baseline.settings.max_k
    if longest < needed:
        problem = f"the candidate was measured up to K = {longest}, the baseline up to {needed}"
        raise ProfileError(problem, f"profile it with --max-k {needed}")


def _subject(manifest: Manifest) -> dict[str, object]:
    """What must be the same for a difference to mean anything."""
    settings = manifest.settings
    return {
        "workload": manifest.workload.hash[:12],
        "target": _weights(manifest.target),
        "dtype": manifest.environment.dtype,
        "temperatures": " ".join(f"{t:g}" for t in sorted(settings.temperatures)),
        "max_new_tokens": settings.max_new_tokens,
        "top_p and top_k": (settings.top_p, settings.top_k),
    }


def require_further_runs(profile: Profile, others: Sequence[Profile]) -> None:
    """Raises: ProfileError where one is not another run of the same, or its costs are given twice: they would show a
    spread that is not there.
    """
    for place, other in enumerate(others):
        require_comparable(profile.manifest, other.manifest)
        for name, text in differences(profile.manifest, other.manifest).items():
            problem = f"a further run is not one of the same: {name} {text}"
            raise ProfileError(problem, "give profiles of one code, model and machine")
        if any(other.costs.equals(earlier.costs) for earlier in (profile, *others[:place])):
            raise ProfileError("the same costs are given twice", "give each run of a side once")


def differences(baseline: Manifest, candidate: Manifest) -> dict[str, str]:
    """What the profiles say of themselves that is not the same, and does not forbid comparing."""
    before, after = _circumstances(baseline), _circumstances(candidate)
    return {name: f"{value}, now {after.get(name)}" for name, value in before.items() if value != after.get(name)}


def _circumstances(manifest: Manifest) -> dict[str, object]:
    digests = {f"weights of {draft.spec}": _weights(draft.model) for draft in manifest.drafts if draft.model}
    return {
        **{name: getattr(manifest.environment, name) for name in MACHINE},
        **manifest.environment.versions,
        "spectune": manifest.spectune_version,
        "chat template": str(manifest.workload.chat_template_digest)[:12],
        **digests,
    }


def _weights(model: ModelRecord) -> str:
    return model.digest[:12] if model.digest else f"{model.name}@{model.revision}"
