"""The table of engines: every adapter, what its record may say, and which versions it was checked against."""

import pkgutil

import pytest

from spectune.drafting_spec import METHODS
from spectune.engines import adapters
from spectune.engines.catalogue import ENGINES, engine_named


def test_every_adapter_stands_in_the_catalogue() -> None:
    written = {module.name for module in pkgutil.iter_modules(adapters.__path__)}
    assert {name.replace("-", "_").replace(".", "_") for name in ENGINES} == written
    assert len({engine.name for engine in ENGINES.values()}) == len(written)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_methods_are_those_that_spectune_knows_and_trees_are_of_them(engine) -> None:
    assert set(engine.trees) <= set(engine.methods) <= set(METHODS)


@pytest.mark.parametrize(
    ("text", "checked"),
    [
        ("vllm", True),
        ("vllm@0.32.1", True),
        ("vllm@v0.32", True),
        ("vllm@0", False),
        ("vllm@0.3", False),
        ("SGLang@0.5", True),
        ("sglang@0.5.22", False),
        ("llamacpp@b11549", True),
        ("llama.cpp@b11550", False),
    ],
)
def test_a_version_is_checked_where_the_numbers_that_both_give_agree(text, checked) -> None:
    assert (engine_named(text).unchecked is None) == checked
