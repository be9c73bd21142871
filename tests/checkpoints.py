"""Tiny checkpoints on disk: a random Llama with a word tokenizer and a chat template."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(61)]
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}assistant "


def save_checkpoint(
    folder: Path, *, seed: int = 0, words: list[str] = WORDS, padding_ids: int = 0, weights: str = "safetensors"
) -> str:
    network = tiny_llama(save_tokenizer(folder, words) + padding_ids, seed)
    network.generation_config.eos_token_id = 1
    if weights == "safetensors":
        network.save_pretrained(folder)
    else:
        network.config.save_pretrained(folder)
        if weights == "pickle":
            torch.save(network.state_dict(), folder / "pytorch_model.bin")
    return str(folder)


def save_tokenizer(folder: Path, words: list[str] = WORDS) -> int:
    """A word tokenizer with a chat template; the size of its vocabulary."""
    vocab = {"<unk>": 0, "<eos>": 1, "user": 2, "assistant": 3} | {word: 4 + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(vocab)


def tiny_llama(vocab_size: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        dtype="float32",
    )
    return LlamaForCausalLM(config)
