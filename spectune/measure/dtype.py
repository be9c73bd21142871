"""`--dtype auto` on a CPU: the checkpoint's own type, unless timing shows another to be much faster."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from spectune.errors import DeviceError
from spectune.measure.environment import dtype_name
from spectune.measure.rounds import Stopwatch
from spectune.models.loading import LanguageModel
from spectune.models.scoring import repeatable_forwards

_WORTH = 1.3  # times as fast: less is not worth another law than the checkpoint's
_CONTEXT_TOKENS, TRIED_PASSES = 64, 12


def worth_it(own_s: float, other_s: float) -> bool:
    """Whether the other type is so much faster."""
    return own_s >= _WORTH * other_s


def fastest_in(load: Callable[[str], LanguageModel], max_k: int, say: Callable[[str], None]) -> LanguageModel:
    """The model in float32 or bfloat16, by a plain step and a step over K + 1 tokens in both, by turns.

    `load` takes `auto`, the checkpoint's type, or one of the two. Where both do not fit, it is the checkpoint's.
    """
    own = load("auto")
    name, other_name = dtype_name(own), "bfloat16" if own.dtype == torch.float32 else "float32"
    try:
        other = load(other_name)
    except DeviceError:
        say(f"--dtype auto: {name}, the checkpoint's; there is no room to try {other_name} beside it")
        return own
    own_s, other_s = _steps_s((own, other), max_k)
    ratio = f"{own_s / other_s:.2f} times as fast here"
    if worth_it(own_s, other_s):
        say(f"--dtype auto: {other_name}, {ratio} as {name}, the checkpoint's")
        return other
    say(f"--dtype auto: {name}, the checkpoint's; {other_name} is {ratio}, which is not worth it")
    return own


def _steps_s(models: tuple[LanguageModel, LanguageModel], max_k: int) -> list[float]:
    """Seconds of both steps together, medians."""
    work = [_work(model, max_k) for model in models]
    samples = np.array([[[step() for step in steps] for steps in work] for _ in range(TRIED_PASSES)])
    return [float(seconds) for seconds in np.median(samples[2:], axis=0).sum(axis=1)]  # the first ones are slow


def _work(model: LanguageModel, max_k: int) -> list[Callable[[], float]]:
    context = [token % model.vocab_size for token in range(_CONTEXT_TOKENS)]
    stopwatch, steps = Stopwatch(model.device), repeatable_forwards(model, context, 1, [1, max_k + 1])

    def timed(n: int) -> float:
        seconds = stopwatch.seconds(steps[n].run)
        steps[n].undo()
        return seconds

    return [partial(timed, n) for n in steps]
