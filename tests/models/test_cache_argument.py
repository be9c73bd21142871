"""The cache goes in under the name that a network knows, for the other is swallowed without a word."""

from spectune.models.kv_cache import cache_argument, new_cache
from tests.toys import tiny_network


class OfNow:
    def forward(self, input_ids, cache=None, **kwargs): ...


class OfBefore:
    def forward(self, input_ids, past_key_values=None, **kwargs): ...


class Wrapped:
    def forward(self, *arguments, **more): ...


def test_the_name_is_that_of_the_forward() -> None:
    cache = new_cache()
    assert cache_argument(Wrapped(), cache) == cache_argument(tiny_network("llama"), cache)
    assert cache_argument(OfNow(), cache) == {"cache": cache}
    assert cache_argument(OfBefore(), cache) == {"past_key_values": cache}


def test_the_installed_transformers_fills_it() -> None:
    import torch

    cache, network = new_cache(), tiny_network("llama")
    network(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True, **cache_argument(network, cache))
    assert cache.get_seq_length() == 3
