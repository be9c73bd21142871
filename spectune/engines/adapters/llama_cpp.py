"""llama.cpp's server: --spec-… options, what it refuses, and what it tells of itself.

Checked against tools/server/README.md, common/speculative.cpp and tools/server of ggml-org/llama.cpp, autumn 2026, and
against a running server (tests/e2e/test_llama_cpp.py).
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spectune.checkpoints.facts import OTHER_VOCABULARY, ModelFacts, texts_at
from spectune.drafting_spec import DraftSpec
from spectune.engines import preflight
from spectune.engines.engine import ConfigText, Engine, for_draft_models
from spectune.engines.preflight import Finding, Plan, error, info, warning
from spectune.engines.speculation import Speculation
from spectune.errors import printable
from spectune.served.exposition import Series, spec_decode_counts
from spectune.served.telemetry import Counts, number, numbers_of

_TYPES = {"draft_model": "draft-simple", "ngram": "ngram-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
_SIZE_DIFFERENCE, _FIRST_COMPARED_ID = 128, 5
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
_ROUNDED = "drafts follow from a rounded mean in the log"
_LINE = re.compile(
    r"draft acceptance(?: rate)? = +([0-9.]+) \( *([0-9]+) accepted / *([0-9]+) generated\)"
    r"(?:, mean (?:len|acceptance length) = +([0-9.]+))?(?:, acceptance rate per position = \(([0-9., ]*)\))?"
)


def config(speculation: Speculation) -> ConfigText:
    """`llama-server`, which draws its own sample and keeps proposals that equal it."""
    draft, k = speculation.draft, speculation.num_speculative_tokens
    drafting, notes = _drafting(draft, k) if draft else ([], [])
    if draft and speculation.varies:
        notes.append(f"no schedule by batch: K = {k} stays at every batch")
    if not speculation.target.endswith(".gguf"):
        notes.append("it reads GGUF files: convert the models first")
    options = [f"--model {shlex.quote(speculation.target)}", *drafting, "--metrics"]
    rule = "greedy_draft" if draft else "none"
    return ConfigText(text=" \\\n  ".join(["llama-server", *options]), rule=rule, notes=notes)


def _drafting(draft: DraftSpec, k: int) -> tuple[list[str], list[str]]:
    """Options, and what is to be said of them."""
    kind = f"--spec-type {_TYPES[draft.method]}"
    if draft.method == "ngram":
        options = [f"--spec-ngram-simple-size-n {draft.max_tokens}", f"--spec-ngram-simple-size-m {k}"]
        note = f"it looks up exactly {draft.max_tokens} tokens, so it proposes less often than {draft.text} does"
        return [kind, *options], [note] if draft.min_tokens != draft.max_tokens else []
    model = [f"--spec-draft-model {shlex.quote(draft.model)}"] if draft.model else []
    return [kind, *model, f"--spec-draft-n-max {k}", "--spec-draft-p-min 0.0"], []


def _method_findings(plan: Plan) -> Iterator[Finding]:
    yield from preflight.method_findings(plan, "llama.cpp", _TYPES, "use a draft model, n-gram, EAGLE-3 or MTP")
    for name, replacement in _REMOVED.items():
        if name in plan.settings:
            option = f"{'-' if len(name) == 2 else '--'}{name.replace('_', '-')}"
            message = f"{option} was removed: the server does not start with it"
            yield error("gone", message, f"write {replacement} {plan.settings[name]}")


def _vocabulary_findings(plan: Plan) -> Iterator[Finding]:
    refusals = [error("vocabulary", said, OTHER_VOCABULARY) for said in _refusals(plan)]
    yield from refusals or _uncompared_findings(plan.target, plan.drafting)


def _refusals(plan: Plan) -> Iterator[str]:
    """Kinds, begin and end tokens and texts from id 5 on must be equal; sizes may differ by 128."""
    target, draft = plan.target, plan.drafting
    if target.tokenizer_kind and draft.tokenizer_kind and target.tokenizer_kind != draft.tokenizer_kind:
        kinds = f"{printable(target.tokenizer_kind)} and {printable(draft.tokenizer_kind)}"
        yield f"llama.cpp refuses vocabularies of kinds {kinds}"
    yield from _edge_refusals("bos", (target.add_bos, draft.add_bos), (target.bos_id, draft.bos_id))
    yield from _edge_refusals("eos", (target.add_eos, draft.add_eos), (target.eos_id, draft.eos_id))
    ours, theirs = _size(target), _size(draft)
    if abs(ours - theirs) > _SIZE_DIFFERENCE:
        yield f"llama.cpp refuses vocabularies of {ours} and {theirs}: over {_SIZE_DIFFERENCE} apart"
    if compared := [texts for token_id, texts in _differing(target, draft).items() if token_id >= _FIRST_COMPARED_ID]:
        yield f"the tokenizers differ: {compared[0]}"


def _edge_refusals(name: str, added: Sequence[bool | None], ids: Sequence[int | None]) -> Iterator[str]:
    """Of the token that begins or ends texts: both add it or neither, and the same one."""
    if None not in added and added[0] != added[1]:
        yield f"one model adds a {name} token, the other does not"
    elif added[0] and None not in ids and ids[0] != ids[1]:
        yield f"the models add other {name} tokens, ids {ids[0]} and {ids[1]}"


def _uncompared_findings(target: ModelFacts, draft: ModelFacts) -> Iterator[Finding]:
    """What it bears: other texts at the first ids, and other sizes."""
    differing, ours, theirs = _differing(target, draft), _size(target), _size(draft)
    if differing:
        compared = f"llama.cpp compares ids {_FIRST_COMPARED_ID} to {min(ours, theirs) - 1} only"
        yield warning("vocabulary", f"{next(iter(differing.values()))}; {compared}", preflight.TOKENS_APART)
    elif target.texts and draft.texts and ours != theirs:
        message = f"embeddings of {ours} and {theirs} rows with the same tokens: padding only"
        yield info("padding", message, "nothing to do: llama.cpp accepts up to 128 rows of difference")


def _size(model: ModelFacts) -> int:
    return model.vocab_size or len(model.texts)


def _differing(target: ModelFacts, draft: ModelFacts) -> dict[int, str]:
    """Ids in both vocabularies with another text in each, and which; none where one of them is not known."""
    if not target.texts or not draft.texts:
        return {}
    size, named = min(_size(target), _size(draft)), sorted(target.texts.keys() | draft.texts.keys())
    texts = {  # a GGUF file has one for every row of the embedding
        token_id: [model.texts.get(token_id, f"[PAD{token_id}]") for model in (target, draft)]
        for token_id in named
        if token_id < size
    }
    return {token_id: texts_at(token_id, *both) for token_id, both in texts.items() if both[0] != both[1]}


def counts_of_series(series: Series) -> Counts | None:
    """From /metrics of a server started with --metrics."""
    counts = spec_decode_counts(series, "llamacpp", "_total")
    return None if counts.proposed is counts.drafts is None else counts


def counts_of_object(body: Mapping[str, object]) -> Counts | None:
    """From timings of a response: the prompt gives the first token, each round after it one more than it accepted."""
    if "predicted_n" not in body:
        return None
    known = numbers_of(body, "predicted_n", "draft_n", "draft_n_accepted")
    accepted = known.get("draft_n_accepted", 0.0)
    return Counts(
        rounds=max(known.get("predicted_n", 0.0) - 1 - accepted, 0.0),
        proposed=known.get("draft_n", 0.0),
        accepted=accepted,
        warnings=("rounds follow from the tokens emitted; those without a proposal are among them",),
    )


def counts_of_line(line: str) -> Counts | None:
    """From `draft acceptance` of the log, a request each; older versions do not say how many rounds there were."""
    told = _LINE.search(line)
    if told is None:
        return None
    accepted, proposed = number(told[2]), number(told[3])
    mean = number(told[4]) if told[4] else None
    drafts = min(round(accepted / (mean - 1)), proposed) if mean is not None and mean > 1 else None
    rates = [number(rate) for rate in re.findall(r"[0-9.]+", told[5] or "")] if drafts else []
    if drafts and rates and mean is not None:  # a mean near 1 says little, told to two decimals
        at_least = math.ceil(proposed / len(rates))
        drafts = max(drafts, at_least) if mean > 1.2 else at_least
    counts = Counts(proposed=proposed, accepted=accepted, length=mean)
    if drafts is None:
        return counts
    by_position = tuple(rate * drafts for rate in rates)
    return replace(counts, drafts=float(drafts), by_position=by_position, warnings=(_ROUNDED,) if drafts else ())


ENGINE = Engine(
    name="llama.cpp", checked_against="b11549", methods=tuple(_TYPES), config=config,
    checks=(_method_findings, preflight.mtp_findings, for_draft_models(_vocabulary_findings), preflight.pair_findings),
    counts_of_series=counts_of_series, counts_of_object=counts_of_object, counts_of_line=counts_of_line,
)  # fmt: skip
