"""Draft SPECs as the user writes them: `ngram:min=1,max=4`, `layers:20`, or anything that names a model."""

from spectune.errors import ConfigError

DEFAULT_DRAFT = "ngram:min=1,max=4"


def ngram_bounds(spec: str) -> tuple[int, int] | None:
    """(min, max) of `ngram` or `ngram:min=1,max=4`; None where the spec names something else.

    As in vLLM, one bound that is left out copies the other; plain `ngram` is min=1,max=4.
    Raises: ConfigError for bounds that make no sense.
    """
    name, _, options = spec.partition(":")
    if name != "ngram":
        return None
    bounds: dict[str, int] = {}
    for part in options.split(",") if options else []:
        key, _, value = part.partition("=")
        if key not in ("min", "max") or not value.isdecimal() or key in bounds:
            raise ConfigError(f"draft {spec!r} is not understood at {part!r}", f"write {DEFAULT_DRAFT}")
        bounds[key] = int(value)
    given = next(iter(bounds.values()), None)
    low, high = (1, 4) if given is None else (bounds.get("min", given), bounds.get("max", given))
    if not 1 <= low <= high:
        raise ConfigError(
            f"draft {spec!r} looks up {low} to {high} tokens", f"give 1 ≤ min ≤ max, as in {DEFAULT_DRAFT}"
        )
    return low, high


def layer_count(spec: str) -> int | None:
    """N of `layers:N`; None where the spec names something else. Raises: ConfigError for what is no number."""
    name, colon, count = spec.partition(":")
    if name != "layers" or not colon:
        return None
    if not count.isdecimal():
        raise ConfigError(f"draft {spec!r} is not understood at {count!r}", "write layers:20, a number of layers")
    return int(count)


def canonical_spec(spec: str) -> str:
    """The spec with its defaults written out; models stay as they are."""
    bounds = ngram_bounds(spec)
    return spec if bounds is None else f"ngram:min={bounds[0]},max={bounds[1]}"
