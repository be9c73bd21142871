"""llama.cpp's server: --spec-… options, what it refuses, and what it tells of itself.

Checked against tools/server/README.md, common/speculative.cpp and tools/server of ggml-org/llama.cpp, autumn 2026, and
against a running server (tests/e2e/test_llama_cpp.py).
"""

import math
import re
import shlex
from collections.abc import Mapping

from spectune.checkpoints.facts import ModelFacts
from spectune.engines import (
    OTHER_VOCABULARY,
    ConfigText,
    Finding,
    Plan,
    error,
    info,
    mtp_findings,
    pair_findings,
    texts_at,
    warning,
)
from spectune.engines.speculation import Speculation
from spectune.errors import printable
from spectune.served.telemetry import Counts, Series, by_position, number, numbers_of, total

NAME, CHECKED_AGAINST = "llama.cpp", "b11549"
_TYPES = {"draft_model": "draft-simple", "ngram": "ngram-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
METHODS = tuple(_TYPES)
TREES = ()  # it verifies chains only
_SIZE_DIFFERENCE = 128
_FIRST_COMPARED_ID = 5
_REMOVED = {
    "draft": "--spec-draft-n-max",
    "spec_replace": "a draft of the same vocabulary instead of",
    "ctx_size_draft": "--ctx-size, which holds for both, instead of",
    "cd": "--ctx-size, which holds for both, instead of",
    "draft_n": "--spec-draft-n-max",
    "draft_max": "--spec-draft-n-max",
    "draft_min": "--spec-draft-n-min",
    "draft_n_min": "--spec-draft-n-min",
    "spec_ngram_size_n": "--spec-ngram-simple-size-n",
    "spec_ngram_size_m": "--spec-ngram-simple-size-m",
    "spec_ngram_min_hits": "--spec-ngram-simple-min-hits",
}


# ------------------------------------------------------------------------------------------------ config


def config(asked: Speculation) -> ConfigText:
    """`llama-server`, which draws its own sample and keeps proposals that equal it."""
    draft, k = asked.draft, asked.num_speculative_tokens
    options, rule, notes = [f"--model {shlex.quote(asked.target)}"], "none", []
    if draft is not None:
        rule = "greedy_draft"
        options.append(f"--spec-type {_TYPES[draft.method]}")
    if draft and draft.method == "ngram":
        options += [f"--spec-ngram-simple-size-n {draft.max_tokens}", f"--spec-ngram-simple-size-m {k}"]
        if draft.min_tokens != draft.max_tokens:
            notes.append(
                f"it looks up exactly {draft.max_tokens} tokens, so it proposes less often than {draft.text} does"
            )
    elif draft:
        options += [f"--spec-draft-model {shlex.quote(draft.model)}"] if draft.model else []
        options += [f"--spec-draft-n-max {k}", "--spec-draft-p-min 0.0"]
    if draft and asked.varies:
        notes.append(f"no schedule by batch: K = {k} stays at every batch")
    if not asked.target.endswith(".gguf"):
        notes.append("it reads GGUF files: convert the models first")
    options.append("--metrics")
    return ConfigText(text=" \\\n  ".join(["llama-server", *options]), rule=rule, notes=notes)


# ------------------------------------------------------------------------------------------------ preflight


def findings(plan: Plan) -> list[Finding]:
    """What llama.cpp would refuse or read otherwise."""
    found, method = [], plan.draft.method
    if method not in _TYPES:
        found.append(
            error("method", f"llama.cpp has no {method} drafting", "use a draft model, n-gram, EAGLE-3 or MTP")
        )
    for name, now in _REMOVED.items():
        if name in plan.settings:
            option = f"{'-' if len(name) == 2 else '--'}{name.replace('_', '-')}"
            message = f"{option} was removed: the server does not start with it"
            found.append(error("gone", message, f"write {now} {plan.settings[name]}"))
    found += mtp_findings(plan)
    if method == "draft_model" and plan.model:
        found += _vocabulary_findings(plan)
    return [*found, *pair_findings(plan)]


def _vocabulary_findings(plan: Plan) -> list[Finding]:
    """Equal kinds, begin and end tokens and texts from id 5 on; sizes may differ by 128."""
    target, draft = plan.target, plan.model
    assert draft is not None, "a draft model has facts"
    remedy = OTHER_VOCABULARY
    found = []
    if target.tokenizer_kind and draft.tokenizer_kind and target.tokenizer_kind != draft.tokenizer_kind:
        kinds = f"{printable(target.tokenizer_kind)} and {printable(draft.tokenizer_kind)}"
        message = f"llama.cpp refuses vocabularies of kinds {kinds}"
        found.append(error("vocabulary", message, remedy))
    found += _edge_findings("bos", target.add_bos, draft.add_bos, target.bos_id, draft.bos_id)
    found += _edge_findings("eos", target.add_eos, draft.add_eos, target.eos_id, draft.eos_id)
    sizes = target.vocab_size or len(target.texts), draft.vocab_size or len(draft.texts)
    if abs(sizes[0] - sizes[1]) > _SIZE_DIFFERENCE:
        message = f"llama.cpp refuses vocabularies of {sizes[0]} and {sizes[1]}: over {_SIZE_DIFFERENCE} apart"
        found.append(error("vocabulary", message, remedy))
    if not target.texts or not draft.texts:
        return found
    named = sorted(i for i in target.texts.keys() | draft.texts.keys() if i < min(sizes))
    differing = [i for i in named if _text(target, i) != _text(draft, i)]
    compared = [i for i in differing if i >= _FIRST_COMPARED_ID]
    if compared:
        place = compared[0]
        message = f"the tokenizers differ: {texts_at(place, _text(target, place), _text(draft, place))}"
        found.append(error("vocabulary", message, remedy))
    elif not found and differing:
        place = differing[0]
        message = texts_at(place, _text(target, place), _text(draft, place))
        message += f"; llama.cpp compares ids {_FIRST_COMPARED_ID} to {min(sizes) - 1} only"
        found.append(warning("vocabulary", message, "check that such tokens do not occur in your texts"))
    elif not found and sizes[0] != sizes[1]:
        message = f"embeddings of {sizes[0]} and {sizes[1]} rows with the same tokens: padding only"
        found.append(info("padding", message, "nothing to do: llama.cpp accepts up to 128 rows of difference"))
    return found


def _text(facts: ModelFacts, token_id: int) -> str:
    """As it is in a GGUF file, which has one for every row of the embedding."""
    return facts.texts.get(token_id, f"[PAD{token_id}]")


def _edge_findings(
    name: str, ours: bool | None, theirs: bool | None, our: int | None, their: int | None
) -> list[Finding]:
    """Of the token that begins or ends texts: both add it or neither, and the same one."""
    if None not in (ours, theirs) and ours != theirs:
        message = f"one model adds a {name} token, the other does not"
        return [error("vocabulary", message, OTHER_VOCABULARY)]
    if ours and None not in (our, their) and our != their:
        message = f"the models add other {name} tokens, ids {our} and {their}"
        return [error("vocabulary", message, OTHER_VOCABULARY)]
    return []


# ------------------------------------------------------------------------------------------------ telemetry

_TELLING_MEAN = 1.2
_PREFIX = "llamacpp:spec_decode_num_"
_LINE = re.compile(
    r"draft acceptance(?: rate)? = +([0-9.]+) \( *([0-9]+) accepted / *([0-9]+) generated\)"
    r"(?:, mean (?:len|acceptance length) = +([0-9.]+))?(?:, acceptance rate per position = \(([0-9., ]*)\))?"
)


def counts_of_series(series: Series) -> Counts | None:
    """From /metrics of a server started with --metrics."""
    drafts, proposed, accepted = (
        total(series, f"{_PREFIX}{name}_total") for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if proposed is None and drafts is None:
        return None
    positions = by_position(series, f"{_PREFIX}accepted_tokens_per_pos_total")
    return Counts(
        num_drafts=drafts, num_draft_tokens=proposed, num_accepted_tokens=accepted, accepted_by_position=positions
    )


def counts_of_object(found: Mapping[str, object]) -> Counts | None:
    """From timings of a response: the prompt gives the first token, each round after it one more than it accepted.

    Rounds without a proposal are among them.
    """
    if "predicted_n" not in found:
        return None
    known = numbers_of(found, "predicted_n", "draft_n", "draft_n_accepted")
    accepted = known.get("draft_n_accepted", 0.0)
    return Counts(
        num_rounds=max(known.get("predicted_n", 0.0) - 1 - accepted, 0.0),
        num_draft_tokens=known.get("draft_n", 0.0),
        num_accepted_tokens=accepted,
        warnings=("rounds follow from the tokens emitted; those without a proposal are among them",),
    )


def counts_of_line(line: str) -> Counts | None:
    """From `draft acceptance` of the log, a request each; older versions do not say how many rounds there were."""
    found = _LINE.search(line)
    if found is None:
        return None
    accepted, proposed = number(found[2]), number(found[3])
    mean = number(found[4]) if found[4] else None
    drafts = min(round(accepted / (mean - 1)), proposed) if mean is not None and mean > 1 else None
    rates = [number(one) for one in re.findall(r"[0-9.]+", found[5] or "")] if drafts else []
    if drafts and rates and mean is not None:  # a mean near 1 says little, told to two decimals
        at_least = math.ceil(proposed / len(rates))
        drafts = max(drafts, at_least) if mean > _TELLING_MEAN else at_least
    return Counts(
        num_drafts=None if drafts is None else float(drafts),
        num_draft_tokens=proposed,
        num_accepted_tokens=accepted,
        acceptance_length=mean,
        accepted_by_position=tuple(rate * drafts for rate in rates) if drafts else (),
        warnings=("drafts follow from a rounded mean in the log",) if drafts else (),
    )
