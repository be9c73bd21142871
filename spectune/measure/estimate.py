"""What a profile will take, told before anything loads: from file headers, and a moment's test of the machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

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
    verify_sizes,
)
from spectune.measure.dtype import worth_it
from spectune.measure.probe import forwards_s, recording_step_s
from spectune.measure.recording import ROWS_PER_BATCH
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
_TEST_ROWS, _TEST_INPUTS, _TEST_OUTPUTS = 64, 2048, 8192


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
    bytes_per_s: float  # of weights, for a token at a time
    flops: float  # for many tokens at once

    def seconds(self, parameters: int, tokens: int, itemsize: int) -> float:
        """One forward: bound by the weights it reads, or by what it computes."""
        return max(parameters * itemsize / self.bytes_per_s, 2 * parameters * tokens / self.flops)


def estimate_run(run: Run) -> Estimate:
    """Raises: ConfigError for a model whose size is not told by its headers."""
    device = resolve_device(run.device)
    target, unpacking = _sized(run.target)
    dtype, machine = _settled(run, device, target)
    drafts = [(spec, *_draft_size(spec, target)) for spec in run.draft]
    _require_fitting(run)
    prompts = [_tokens(prompt) for prompt in load_workload(run.workload).profiled]
    temperatures = list(dict.fromkeys(run.temperature)) or [0.0, 1.0]
    own = [size for spec, size, _ in drafts if method_of(spec).weights != "target"]
    seconds = {
        "load": _load_s([target, *own], unpacking + sum(d[2] for d in drafts), dtype.itemsize),
        "record": 0.0 if run.tape else _record_s(target, prompts, run, machine, device, dtype),
        "replay": sum(
            machine.seconds(size.parameters, (prompt + run.max_new_tokens) * len(temperatures), dtype.itemsize)
            for spec, size, _ in drafts
            if method_of(spec).weights != "none"
            for prompt in prompts
        ),
        "costs": _costs_s(target, [d[1] for d in drafts], prompts, run, machine, dtype.itemsize),
    }
    return Estimate(
        seconds=seconds,
        memory_bytes=_memory(target, own, prompts, len(temperatures), run, dtype.itemsize),
        free_bytes=free_bytes(device),
        prompts=len(prompts),
        disk_bytes=unpacking + sum(d[2] for d in drafts) + 40.0 * len(prompts) * len(temperatures) * run.max_new_tokens,
    )


def estimate_confirm(profile: Profile, token_s: Mapping[Choice, float], prompts: int, length: int) -> dict[str, float]:
    """Seconds by stage of a confirming run, by the profile's own costs; `token_s` are those of a token of each trial,
    plain decoding at its temperature among them.
    """
    cells, run, itemsize = CostCells.of(profile.costs), profile.manifest.run, 4
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
        "load": _load_s([target, *own], 0.0, itemsize),
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


def _settled(run: Run, device: torch.device, target: ModelSize) -> tuple[torch.dtype, "_Machine"]:
    """The type that a run would take, and how fast the machine is in it."""
    own = resolve_dtype(run.dtype, device, _stored_type(target))
    if run.dtype == "auto" and device.type == "cpu":
        other = torch.bfloat16 if own == torch.float32 else torch.float32
        steps = [forwards_s(run.target, device, dtype, (1, run.max_k + 1)) for dtype in (own, other)]
        if steps[0] and steps[1] and worth_it(sum(steps[0]), sum(steps[1])):
            own = other
    return own, _tested(run.target, target, device, own)


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


def _load_s(sizes: Sequence[ModelSize], unpacked_bytes: float, itemsize: int) -> float:
    """Files are read and hashed as they are; weights of another dtype are copied into the one asked for."""
    moved = sum(size.stored_bytes + size.parameters * itemsize for size in sizes) + 5 * unpacked_bytes
    return _START_S + moved / _LOAD_BYTES_PER_S


def _costs_s(
    target: ModelSize, drafts: Sequence[ModelSize], prompts: Sequence[int], run: Run, machine: _Machine, itemsize: int
) -> float:
    """The budget, or what the fewest passes take: everything once and the forwards until they are steady, then six."""
    loads = len({1, *run.batch}) * (1 + len(set(run.context)))
    step = machine.seconds(target.parameters, 1, itemsize)
    main, others = (len(verify_sizes(run.max_k, main)) for main in (True, False))
    forwards = (main - 1 + PLAIN_STEPS_OF_A_PASS + others * (loads - 1)) * step
    rounds = step
    for size in drafts:
        proposed = machine.seconds(size.parameters, 1, itemsize)
        forwards += 2 * loads * proposed
        rounds += sum(step + shape.depth * proposed for shape in round_shapes(run.max_k))
    rounds *= min(2, len(set(run.temperature)) or 2)
    reading = sum(
        machine.seconds(size.parameters, tokens, itemsize)
        for size in (target, *drafts)
        for tokens in {min(prompts), sorted(prompts)[len(prompts) // 2], max(prompts)}
    )
    least = FEWEST_PASSES * (forwards + rounds) + READING_PASSES * reading
    return max(run.budget_s, least + rounds + reading + USUAL_WARM_UP_PASSES * forwards)


def _record_s(
    target: ModelSize, prompts: Sequence[int], run: Run, machine: _Machine, device: torch.device, dtype: torch.dtype
) -> float:
    """Prompts one by one, then steps of whole batches; where the target's shape is not told, by its size."""
    temperatures = list(dict.fromkeys(run.temperature)) or [0.0, 1.0]
    copies, left = len(temperatures), len(prompts)
    together = min(left, max(1, ROWS_PER_BATCH // copies))
    cached = sorted(prompts)[-1 - (together - 1) // 2] + run.max_new_tokens // 2  # of the first batch, the longest
    step_s = recording_step_s(run.target, device, dtype, together, cached, temperatures)
    if step_s is None:
        step_s = machine.seconds(target.parameters, together * copies, dtype.itemsize)
    one_s, seconds = machine.seconds(target.parameters, 1, dtype.itemsize), 0.0
    while left > 0:
        seconds += run.max_new_tokens * max(one_s, step_s * min(left, together) / together)
        left -= together
    return seconds + sum(machine.seconds(target.parameters, tokens, dtype.itemsize) for tokens in prompts)


def _memory(
    target: ModelSize, drafts: Sequence[ModelSize], prompts: Sequence[int], copies: int, run: Run, itemsize: int
) -> float:
    together = min(len(prompts) * copies, ROWS_PER_BATCH)
    cached = target.cached_values * together * (max(prompts, default=0) + run.max_new_tokens) * itemsize
    loads = target.cached_values * max([1, *run.batch]) * max([0, *run.context]) * itemsize
    logits = 3 * 8.0 * together * target.vocab_size  # a few float64 copies of a step's law
    weights = sum(size.parameters for size in (target, *drafts)) * itemsize
    return float(weights + 1.3 * cached + loads + logits + _RUNTIME_BYTES)


def _tested(spec: str | None, target: ModelSize, device: torch.device, dtype: torch.dtype) -> _Machine:
    """From some layers of the target itself; where its shape is not told, a layer of ordinary shape."""
    weights, steps = target.parameters, forwards_s(spec, device, dtype, (1, _TEST_ROWS))
    if steps is None:
        layer, stopwatch = (
            torch.nn.Linear(_TEST_INPUTS, _TEST_OUTPUTS, bias=False, device=device, dtype=dtype),
            Stopwatch(device),
        )
        weights = layer.weight.numel()

        def median_s(rows: int) -> float:
            run = partial(layer, torch.randn(rows, _TEST_INPUTS, device=device).to(dtype))
            return median([stopwatch.seconds(run) for _ in range(12)][3:])

        with torch.inference_mode():
            steps = [median_s(1), median_s(_TEST_ROWS)]
    return _Machine(bytes_per_s=weights * dtype.itemsize / steps[0], flops=2 * weights * _TEST_ROWS / steps[1])
