"""Table-driven models whose laws can be enumerated, tiny random networks, and the tests that compare laws."""

import copy
import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
import transformers
from scipy import stats
from torch import Tensor

from spectune.decoding.decode import speculative_decode
from spectune.drafting import Drafter
from spectune.models.loading import LanguageModel, wrap_model
from spectune.models.scoring import Forward

torch.set_num_threads(1)  # on tensors this small a second thread only waits


class TableScorer:
    """Logits looked up by the last one or two tokens; `table` is [vocab, vocab] or [vocab, vocab, vocab]."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = torch.tensor(table, dtype=torch.float64)
        self.order = table.ndim - 1

    @property
    def vocab_size(self) -> int:
        return self.table.shape[-1]

    @property
    def device(self) -> torch.device:
        return self.table.device

    def open(self, layers: Sequence[int] = ()) -> "TableSequence":
        assert not layers
        return TableSequence(self)


class TableSequence:
    """Remembers its tokens and which of them each sees; before the first one stands token 0."""

    def __init__(self, scorer: TableScorer) -> None:
        self._scorer = scorer
        self.token_ids: list[int] = []
        self._positions: list[int] = []

    def extend(self, token_ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Forward:
        before, count = len(self.token_ids), len(token_ids)
        self.token_ids += token_ids.tolist()
        self._positions += range(before, before + count) if positions is None else positions.tolist()
        mask = torch.ones(count, count).tril().bool() if mask is None else mask
        seen = [[*range(before + count - mask.shape[1]), *self._told(row)] for row in mask]
        histories = [[0] * self._scorer.order + self._in_order(places) for places in seen]
        return Forward(torch.stack([self._scorer.table[tuple(h[-self._scorer.order :])] for h in histories]))

    def _told(self, row: Tensor) -> list[int]:
        first = len(self.token_ids) - len(row)
        return [first + place for place in row.nonzero()[:, 0].tolist()]

    def _in_order(self, places: list[int]) -> list[int]:
        """Tokens at these places; two of them at one position would be a mask that shows a sibling."""
        positions = [self._positions[place] for place in places]
        assert sorted(positions) == list(range(len(places))), "a node sees its own path, at the places it has there"
        return [self.token_ids[place] for place in sorted(places, key=self._positions.__getitem__)]

    def read(self, token_ids: Tensor) -> Forward:
        return self.extend(token_ids).at(slice(-1, None))

    def keep(self, length: int, path: Tensor | None = None) -> None:
        kept = [] if path is None else [length + place for place in path.tolist()]
        for held in (self.token_ids, self._positions):
            held[length:] = [held[place] for place in kept]


def random_table(seed: int, vocab: int, order: int, scale: float = 1.2) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=(vocab,) * (order + 1))


def transformed_law(logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """The law after temperature, top-k and top-p, token by token; written without the package's transform."""
    weights = np.exp((logits - logits.max()) / temperature)
    if 0 < top_k < len(weights):
        weights[weights < np.sort(weights)[-top_k]] = 0.0
    law = weights / weights.sum()
    kept, mass = np.zeros_like(law), 0.0
    for token_id in sorted(range(len(law)), key=lambda token_id: -law[token_id]):
        if mass >= top_p:
            break
        kept[token_id] = law[token_id]
        mass += law[token_id]
    return kept / kept.sum()


def joint_law(
    next_law: Callable[[list[int]], np.ndarray], prompt: Sequence[int], tokens: int
) -> np.ndarray:  # [vocab] * tokens
    """The law of the next `tokens` tokens, by enumeration; `next_law` maps a sequence to its next token's law."""
    vocab, law_after = len(next_law(list(prompt))), functools.cache(lambda written: next_law([*prompt, *written]))
    joint = np.zeros((vocab,) * tokens)
    for written in itertools.product(range(vocab), repeat=tokens):
        mass = 1.0
        for place, token_id in enumerate(written):
            if mass > 0:
                mass *= law_after(written[:place])[token_id]
        joint[written] = mass
    return joint


def speculative_counts(
    target: object, draft: Drafter, prompt: Sequence[int], K: int, samples: int, shape: tuple[int, ...], **options
) -> np.ndarray:
    """How often each run of len(shape) tokens was decoded, one call with its own seed for each sample."""
    counts = np.zeros(shape)
    for seed in range(samples):
        decoded = speculative_decode(target, draft, prompt, K, max_new_tokens=len(shape), seed=seed, **options)
        counts[tuple(decoded.token_ids)] += 1
    return counts


def followers(
    target: object, draft: Drafter, prompt: Sequence[int], K: int, texts: int, tokens: int, **options
) -> np.ndarray:  # [vocab, vocab]
    """How often each token was decoded after each token, in texts of their own seeds."""
    counts = np.zeros((target.vocab_size,) * 2)
    for seed in range(texts):
        decoded = speculative_decode(target, draft, prompt, K, max_new_tokens=tokens, seed=seed, **options)
        np.add.at(counts, ([prompt[-1], *decoded.token_ids[:-1]], decoded.token_ids), 1)
    return counts


def g_test(counts: np.ndarray, law: np.ndarray, laws: int = 1) -> float:
    """p-value of the G-test; cells that expect fewer than 5 are pooled; 0 where an impossible outcome was seen.

    Where `law` is several side by side, each weighted as it was drawn from, each takes a degree of freedom.
    """
    counts, law = counts.ravel(), law.ravel()
    if counts[law == 0].any():
        return 0.0
    expected = law * counts.sum()
    rare = expected < 5
    if expected[rare].sum() > 0:
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    else:
        counts, expected = counts[~rare], expected[~rare]
    terms = counts * np.log(np.maximum(counts, 1e-300) / expected)
    return float(stats.chi2.sf(2 * terms.sum(), len(counts) - laws))


def divergences(counts: np.ndarray, law: np.ndarray) -> tuple[float, float]:
    """KL(empirical ‖ law) and total variation; infinite KL where an impossible outcome was seen."""
    empirical, law = counts.ravel() / counts.sum(), law.ravel()
    seen = empirical > 0
    with np.errstate(divide="ignore"):
        kl = float(np.sum(empirical[seen] * np.log(empirical[seen] / law[seen])))
    return kl, float(np.abs(empirical - law).sum() / 2)


def sampling_floor(law: np.ndarray, samples: int) -> tuple[float, float]:
    """Mean KL and total variation of as many plain samples of the law itself, by simulation."""
    draws = np.random.default_rng(0).multinomial(samples, law.ravel() / law.sum(), size=400)
    found = np.array([divergences(draw, law) for draw in draws])
    return float(found[:, 0].mean()), float(found[:, 1].mean())


VOCAB = 64
_COMMON = {
    "vocab_size": VOCAB,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_DECODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    **_COMMON,
}
SLIDING_WINDOW = 8
ARCHITECTURES = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=512, **_COMMON)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_DECODER)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=16, **_DECODER)),
    "gemma": lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(head_dim=16, **_DECODER)),
    "gemma3-sliding": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            head_dim=16,
            sliding_window=SLIDING_WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            query_pre_attn_scalar=16,
            **_DECODER,
        )
    ),
}


def tiny_network(architecture: str, seed: int = 0, scale: float = 3.0):
    """A random network whose logits have about `scale` as standard deviation, so that no law is degenerate."""
    torch.manual_seed(seed)
    network = ARCHITECTURES[architecture]().eval()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.ndim == 2 and "embed" not in name and "wte" not in name:
                weight.normal_(std=1 / weight.shape[-1] ** 0.5)
            elif weight.ndim == 2:
                weight.normal_(std=1.0)
        probe = torch.randint(VOCAB, (4, 32))
        network.get_output_embeddings().weight *= scale / network(input_ids=probe).logits.std()
    return network


def noisy_copy(network, noise: float, seed: int = 1):
    """The same network with noise, relative to each weight's own spread, on every matrix."""
    other = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.ndim == 2:
                weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    return other


def tiny_pair(
    architecture: str, seed: int = 0, scale: float = 3.0, noise: float = 0.2
) -> tuple[LanguageModel, LanguageModel]:
    """A target and a draft that agrees with it now and then."""
    network = tiny_network(architecture, seed, scale)
    return wrap_model(network, name="target"), wrap_model(noisy_copy(network, noise), name="draft")


def repetitive_model(scale: float = 9.0) -> LanguageModel:
    """A target that mostly repeats what it said after the same token: blind to position, little attention."""
    network = tiny_network("gpt2", scale=scale)
    with torch.no_grad():
        network.transformer.wpe.weight.zero_()
        for block in network.transformer.h:
            block.attn.c_proj.weight *= 0.3
    return wrap_model(network, name="target")


@torch.inference_mode()
def full_logits(model: LanguageModel, token_ids: Sequence[int]) -> Tensor:  # [length, vocab]
    """Logits after every token from one forward without a cache."""
    output = model.network(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
    return output.logits[0, :, : model.vocab_size]


def greedy_reference(model: LanguageModel, prompt: Sequence[int], tokens: int) -> list[int]:
    """Argmax decoding, every step a full forward without a cache."""
    written: list[int] = []
    for _ in range(tokens):
        written.append(int(full_logits(model, [*prompt, *written])[-1].argmax()))
    return written


def random_prompts(count: int, length: int, seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    return np.random.default_rng(seed).integers(vocab, size=(count, length)).tolist()
