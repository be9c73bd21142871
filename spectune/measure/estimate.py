"""What a profile will take, told before anything loads: from file headers, and a moment's test of the machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np
import torch

from spectune.checkpoints.embedded import EMBEDDED, embedded_gguf
from spectune.checkpoints.facts import OTHER_VOCABULARY, first_difference, model_facts
from spectune.checkpoints.files import model_path
from spectune.checkpoints.size import ModelSize, hub_size, model_size
from spectune.choice import Choice
from spectune.drafting_spec import measured_draft, method_of
from spectune.errors import ConfigError, IncompatibleModelsError
from spectune.measure.cost import (
    FEWEST_PASSES,
    PLAIN_STEPS_OF_A_PASS,
    READING_PASSES,
    USUAL_WARM_UP_PASSES,
    round_shapes,
    tree_sizes,
    verify_sizes,
)
from spectune.measure.dtype import TRIED_PASSES, worth_it
from spectune.measure.probe import Probe, read_tokens
from spectune.measure.recording import ROWS_PER_BATCH, rows_per_shard
from spectune.measure.rounds import Stopwatch
from spectune.models.devices import free_bytes, resolve_device, resolve_dtype
from spectune.models.loading import unpacked_folder
from spectune.profile.costs import CellKey, CostCells
from spectune.profile.manifest import Load
from spectune.profile.run import Run
from spectune.profile.store import Profile
from spectune.workload.prompts import Prompt, load_workload

_BYTES_PER_TOKEN = 4.2  # of UTF-8, in prompts that people write
_TEMPLATE_TOKENS = 20
_RUNTIME_BYTES = 700e6  # the libraries themselves
_LOAD_BYTES_PER_S = 0.6e9
_START_S = 6.0  # importing the libraries
_TEST_ROWS, _TEST_INPUTS, _TEST_OUTPUTS = 256, 2048, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds by stage, bytes of memory and disk; within a factor of two on an idle machine."""

    seconds: dict[str, float]
    memory_bytes: float
    free_bytes: float
    disk_bytes: float
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """How fast it is at models of the target's kind."""

    probe: Probe
    bytes_per_s: float  # of weights, for a token at a time
    flops: float  # for many tokens at once
    verify_sizes: Sequence[int] = (1,)
    verify_steps: Sequence[float] = (1.0,)  # what a forward over so many tokens takes, in plain steps

    def seconds(self, parameters: int, tokens: int) -> float:
        """One forward: bound by the weights it reads, or by what it computes."""
        weights = parameters * self.probe.dtype.itemsize
        return max(weights / self.bytes_per_s, 2 * parameters * tokens / self.flops)

    def verify_s(self, parameters: int, tokens: int) -> float:
        """A forward over the tokens of a round."""
        return self.seconds(parameters, 1) * float(np.interp(tokens, self.verify_sizes, self.verify_steps))


def estimate_run(run: Run) -> Estimate:
    """Raises: ConfigError for a model whose size is not told by its headers."""
    device = resolve_device(run.device)
    target, unpacking = _sized(run.target)
    drafts = [(spec, *_draft_size(spec, target)) for spec in run.draft]
    _require_fitting(run)
    own = [size for spec, size, _ in drafts if method_of(spec).weights == "own"]
    unpacked = unpacking + sum(d[2] for d in drafts)
    machine, load_s = _settled(run, device, target, own, unpacked)
    profiled = load_workload(run.workload).profiled
    prompts = read_tokens(run.target, profiled) or [_tokens(prompt) for prompt in profiled]
    temperatures, itemsize = _temperatures(run), machine.probe.dtype.itemsize
    seconds = {
        "load": load_s,
        "record": 0.0 if run.tape else _record_s(target, prompts, run, machine),
        "replay": sum(
            machine.seconds(size.parameters, (prompt + run.max_new_tokens) * len(temperatures))
            for spec, size, _ in drafts
            if method_of(spec).weights != "none"
            for prompt in prompts
        ),
        "costs": _costs_s(target, [d[1] for d in drafts], prompts, run, machine),
    }
    return Estimate(
        seconds=seconds,
        memory_bytes=_memory(target, own, prompts, len(temperatures), run, itemsize),
        free_bytes=free_bytes(device),
        prompts=len(prompts),
        disk_bytes=unpacked + 40.0 * len(prompts) * len(temperatures) * run.max_new_tokens,
    )


def estimate_confirm(profile: Profile, token_s: Mapping[Choice, float], prompts: int, length: int) -> dict[str, float]:
    """Seconds by stage of a confirming run, by the profile's own costs; `token_s` are those of a token of each trial,
    plain decoding at its temperature among them.
    """
    cells, run = CostCells.of(profile.costs), profile.manifest.run
    held_out = [len(ids) for ids in profile.held_out["prompt_token_ids"].to_pylist() if ids is not None]
    prompt_tokens = sum(held_out) / len(held_out) if held_out else profile.main_load.context_tokens
    readers = [("read_p", None), *(("read_q", draft.spec) for draft in profile.manifest.drafts)]
    reading = sum(_read_token_s(profile, cells, part, draft) for part, draft in readers)
    warm = {choice.temperature for choice in token_s}
    texts = prompts * sum(len(token_s) / len(warm) if t > 0 else 1 for t in warm)
    target, _ = _sized(run.target)
    own = [size for draft in profile.manifest.drafts if method_of(draft.spec).weights == "own"
           for size, _ in [_sized(draft.model.name if draft.model else None)]]  # fmt: skip
    return {
        "load": _load_s([target, *own], 0.0, getattr(torch, profile.manifest.environment.dtype)),
        "confirm": prompts * (prompt_tokens * reading + length * sum(token_s.values())),
        "replay": texts * (prompt_tokens + length) * reading,
    }


def _read_token_s(profile: Profile, cells: CostCells, part: str, draft: str | None) -> float:
    """Seconds for each token of a long read; where no prompt was timed, by the largest verification."""
    empty, main = Load(batch=1, context_tokens=0), profile.main_load
    sizes = cells.sizes(part, empty, draft)
    if not sizes and part == "read_q":
        return 0.0
    key = (
        CellKey(part=part, tokens=sizes[-1], load=empty, draft=draft)
        if sizes
        else CellKey(part="cost_p", tokens=cells.sizes("cost_p", main)[-1], load=main)
    )
    return float(cells.resampled(key)[0]) / key.tokens


def _settled(
    run: Run, device: torch.device, target: ModelSize, drafts: Sequence[ModelSize], unpacked_bytes: float
) -> tuple[_Machine, float]:
    """How fast the machine is in the type that a run would take, and how long it loads, trials of both types with it.

    Of a model whose shape is not told, a layer of ordinary shape is timed.
    """
    sizes = sorted({1, 2, run.max_k + 1})
    own = Probe(spec=run.target, device=device, dtype=resolve_dtype(run.dtype, device, _stored_type(target)))
    steps, trial_s = own.forwards_s((*sizes, _TEST_ROWS)), 0.0
    if run.dtype == "auto" and device.type == "cpu":
        dtype = torch.bfloat16 if own.dtype == torch.float32 else torch.float32
        other = replace(own, dtype=dtype)
        others = other.forwards_s(sizes)
        if steps and others:
            trial = [(times[0] + times[len(sizes) - 1]) for times in (steps, others)]
            trial_s = TRIED_PASSES * sum(trial) + _load_s([target], 0.0, other.dtype) - _START_S
            if worth_it(*trial):
                own, steps = other, other.forwards_s((*sizes, _TEST_ROWS))
    weights, timed = (target.parameters, (steps[0], steps[-1])) if steps else _ordinary_layer(device, own.dtype)
    machine = _Machine(
        probe=own,
        bytes_per_s=weights * own.dtype.itemsize / timed[0],
        flops=2 * weights * _TEST_ROWS / timed[1],
        verify_sizes=sizes,
        verify_steps=[steps[place] / steps[0] if steps else 1.0 for place in range(len(sizes))],
    )
    return machine, _load_s([target, *drafts], unpacked_bytes, own.dtype) + trial_s


def _ordinary_layer(device: torch.device, dtype: torch.dtype) -> tuple[int, tuple[float, float]]:
    """Its weights, and seconds for one row and for many."""
    layer, stopwatch = (
        torch.nn.Linear(_TEST_INPUTS, _TEST_OUTPUTS, bias=False, device=device, dtype=dtype),
        Stopwatch(device),
    )

    def median_s(rows: int) -> float:
        run = partial(layer, torch.randn(rows, _TEST_INPUTS, device=device).to(dtype))
        return median([stopwatch.seconds(run) for _ in range(12)][3:])

    with torch.inference_mode():
        return layer.weight.numel(), (median_s(1), median_s(_TEST_ROWS))


def _temperatures(run: Run) -> list[float]:
    return list(dict.fromkeys(run.temperature)) or [0.0, 1.0]


def _stored_type(size: ModelSize) -> torch.dtype:
    return torch.bfloat16 if size.stored_bytes < 3 * size.parameters else torch.float32


def _require_fitting(run: Run) -> None:
    """Refuse the drafts that loading would refuse, by the models' configs and tokenizers. Raises as open_draft."""
    target = model_facts(run.target or str(embedded_gguf()))
    for draft in map(measured_draft, run.draft):
        if target.layers is not None and draft.layers >= target.layers:
            problem = f"{draft.text} does not cut the target, which has {target.layers} layers"
            raise ConfigError(problem, f"give layers:1 to layers:{target.layers - 1}")
        ours, theirs = target.words, model_facts(draft.model).words if draft.model else {}
        if ours and theirs and (differs := first_difference(ours, theirs)):
            problem = f"the draft's tokenizer differs from the target's: {differs}"
            raise IncompatibleModelsError(problem, OTHER_VOCABULARY)


def _tokens(prompt: Prompt) -> int:
    text = sum(len(message.content.encode()) for message in prompt.messages)
    return round(text / _BYTES_PER_TOKEN) + _TEMPLATE_TOKENS


def _sized(spec: str | None) -> tuple[ModelSize, float]:
    """A model's size, and what unpacking it will leave on the disk."""
    path = embedded_gguf() if spec is None else model_path(spec)
    size = model_size(path) if path.exists() else hub_size(str(spec))
    if size is None:
        raise ConfigError(f"the size of {spec or EMBEDDED} is not known", "check the name, the files and the network")
    packed = path.suffix == ".gguf" and not unpacked_folder(path).exists()
    return size, 4.0 * size.parameters if packed else 0.0


def _draft_size(spec: str, target: ModelSize) -> tuple[ModelSize, float]:
    weights = method_of(measured_draft(spec).text).weights
    if weights == "none":
        return ModelSize(parameters=0, stored_bytes=0, vocab_size=0, cached_values=0), 0.0
    return (target, 0.0) if weights == "target" else _sized(spec)


def _load_s(sizes: Sequence[ModelSize], unpacked_bytes: float, dtype: torch.dtype) -> float:
    """Files are read and hashed as they are; weights of another dtype are copied into the one asked for."""
    moved = sum(size.stored_bytes + size.parameters * dtype.itemsize for size in sizes) + 5 * unpacked_bytes
    return _START_S + moved / _LOAD_BYTES_PER_S


def _costs_s(
    target: ModelSize, drafts: Sequence[ModelSize], prompts: Sequence[int], run: Run, machine: _Machine
) -> float:
    """The budget, or what the fewest passes take: everything once and the forwards until they are steady, then six."""
    loads = len({1, *run.batch}) * (1 + len(set(run.context)))
    step = machine.seconds(target.parameters, 1)
    main, others = (
        [machine.verify_s(target.parameters, n) for n in verify_sizes(run.max_k, place)] for place in (True, False)
    )
    forwards = sum(main[1:]) + PLAIN_STEPS_OF_A_PASS * step + sum(others) * (loads - 1)
    if any(method_of(spec).evidence == "tree" for spec in run.draft):
        forwards += loads * sum(machine.verify_s(target.parameters, n) for n in tree_sizes(run.max_k))
    rounds = step
    for size in drafts:
        proposed = machine.seconds(size.parameters, 1)
        forwards += 2 * loads * proposed
        verifying = [machine.verify_s(target.parameters, shape.verified_tokens) for shape in round_shapes(run.max_k)]
        rounds += sum(verifying) + proposed * sum(shape.depth for shape in round_shapes(run.max_k))
    rounds *= min(2, len(set(run.temperature)) or 2)
    reading = sum(
        machine.seconds(size.parameters, tokens)
        for size in (target, *drafts)
        for tokens in {min(prompts), sorted(prompts)[len(prompts) // 2], max(prompts)}
    )
    least = FEWEST_PASSES * (forwards + rounds) + READING_PASSES * reading
    return max(run.budget_s, least + rounds + reading + USUAL_WARM_UP_PASSES * forwards)


def _record_s(target: ModelSize, prompts: Sequence[int], run: Run, machine: _Machine) -> float:
    """Prompts one by one, then steps of whole batches; where the target's shape is not told, by its size."""
    temperatures, seconds = _temperatures(run), 0.0
    longest_first, together = sorted(prompts, reverse=True), _together(run, machine, prompts)
    recorded = [longest_first[first : first + together] for first in range(0, len(prompts), together)]
    padded = round(sum(part[0] * len(part) for part in recorded) / len(prompts))
    rows = [temperature for temperature in temperatures for _ in range(together)]
    timed = machine.probe.recording_s(padded + run.max_new_tokens // 2, rows)
    one_s = machine.seconds(target.parameters, 1)
    read_s, step_s = timed or (
        machine.seconds(target.parameters, padded + run.max_new_tokens // 2),
        machine.seconds(target.parameters, len(rows)),
    )
    for part in recorded:
        seconds += run.max_new_tokens * max(one_s, step_s * len(part) / together)
    return seconds + read_s * sum(prompts) / (padded + run.max_new_tokens // 2)


def _together(run: Run, machine: _Machine, prompts: Sequence[int]) -> int:
    """Prompts that are recorded side by side."""
    rows = rows_per_shard(machine.probe.device, run.max_new_tokens)
    return min(len(prompts), max(1, rows // len(_temperatures(run))))


def _memory(
    target: ModelSize, drafts: Sequence[ModelSize], prompts: Sequence[int], copies: int, run: Run, itemsize: int
) -> float:
    together = min(len(prompts) * copies, ROWS_PER_BATCH)
    cached = target.cached_values * together * (max(prompts, default=0) + run.max_new_tokens) * itemsize
    loads = target.cached_values * max([1, *run.batch]) * max([0, *run.context]) * itemsize
    logits = 3 * 8.0 * together * target.vocab_size  # a few float64 copies of a step's law
    weights = sum(size.parameters for size in (target, *drafts)) * itemsize
    return float(weights + 1.3 * cached + loads + logits + _RUNTIME_BYTES)
