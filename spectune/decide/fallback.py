"""When to decode plainly after all: a rule over finished requests that a healthy stream hardly ever trips."""

import math

from spectune.decide.evidence import whole_texts
from spectune.decide.fit import Setting
from spectune.decide.recommendation import Fallback
from spectune.decide.selection import Decision

_FEWEST_REQUESTS = 20  # of a window: fewer tell more of the requests than of the draft


def fallback_rule(decision: Decision, limit_tokens: int) -> tuple[Fallback | None, str]:
    """The rule and what it holds for, or None and why there is none; texts end at the limit.

    Threshold τ_be = T_round/T_plain, and a window long enough that a healthy stream hardly ever falls below.
    """
    if decision.verdict == "plain":
        return None, "plain decoding has nothing to fall back from"
    if decision.verdict != "speculate":
        return None, "no setting is recommended yet"
    setting, texts = decision.setting, decision.setting.texts
    threshold = float(setting.seconds.sum() / texts.rounds.sum() / setting.round.plain_s)
    used = texts.rounds > 0
    gain = texts.emitted[used] - threshold * texts.rounds[used]  # tokens won by each request
    deviation = math.hypot(float(gain.std(ddof=1)), threshold * _chance_of_rounds(setting, limit_tokens))
    surely_won = float(gain.mean()) - 1.645 * deviation / math.sqrt(len(gain))
    if surely_won <= 0:
        return None, "the gain per request is too uncertain for a rule that would not trip on a healthy stream"
    # a healthy stream trips in about one of 10,000 windows
    window = max(_FEWEST_REQUESTS, math.ceil((3.72 * deviation / surely_won) ** 2))
    rate = math.erfc(surely_won * math.sqrt(window / 2) / deviation) / 2 if deviation > 0 else 0.0
    rule = Fallback(acceptance_length_below=threshold, window_requests=window, false_trip_rate=rate)
    return rule, "requests as long as the recorded ones"


def _chance_of_rounds(setting: Setting, limit_tokens: int) -> float:
    """Standard deviation of a request's rounds, given its text; 0 where acceptance is certain or impossible."""
    if setting.evidence.drafting.rule == "greedy_draft" or setting.temperature == 0.0:
        return 0.0
    _, variance = whole_texts(setting.evidence, setting.num_speculative_tokens, limit_tokens)
    return math.sqrt(float(variance.mean()))
