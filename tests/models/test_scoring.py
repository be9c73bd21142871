"""A cached sequence that takes trees: its logits are those of each path alone; what is kept is a set of entries."""

import pytest
import torch

from spectune.models.loading import wrap_model
from spectune.models.scoring import Forward, ModelSequence, repeatable_forwards, teacher_forced
from tests.toys import ARCHITECTURES, full_logits, random_prompts, tiny_network

PARENTS = [-1, -1, 0, 0, 1, 2]  # of proposals behind the last token: two branches, one of which forks again


def path_to(node: int) -> list[int]:
    return [] if node < 0 else [*path_to(PARENTS[node]), node]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request):
    return wrap_model(tiny_network(request.param, seed=3))


def tree_forward(model, prompt: list[int], nodes: list[int]) -> tuple[ModelSequence, Forward]:
    """The last token of the prompt and a tree behind it."""
    paths = [[-1], *([-1, *path_to(node)] for node in range(len(nodes)))]
    mask = torch.tensor([[other in path for other in range(-1, len(nodes))] for path in paths])
    positions = torch.tensor([len(prompt) - 2 + len(path) for path in paths])
    sequence = ModelSequence(model)
    sequence.read(torch.tensor(prompt[:-1]))
    return sequence, sequence.extend(torch.tensor([prompt[-1], *nodes]), positions, mask)


def test_each_node_of_a_tree_sees_its_own_path_only(model) -> None:
    prompt, nodes = random_prompts(2, 9, seed=5)
    nodes = nodes[: len(PARENTS)]
    _, forward = tree_forward(model, prompt, nodes)
    for node in range(-1, len(nodes)):
        alone = full_logits(model, [*prompt, *(nodes[place] for place in path_to(node))])[-1]
        torch.testing.assert_close(forward.logits[node + 1], alone, rtol=0, atol=1e-4)


def test_keeping_a_branch_is_as_having_read_it_alone(model) -> None:
    prompt, nodes = random_prompts(2, 9, seed=6)
    nodes = nodes[: len(PARENTS)]
    for path in ([], [0], [1, 4], [0, 2, 5]):
        sequence, _ = tree_forward(model, prompt, nodes)
        sequence.keep(len(prompt), torch.tensor(path, dtype=torch.long))
        after = [3, 1, 4]
        kept = [*prompt, *(nodes[place] for place in path), *after]
        logits = sequence.extend(torch.tensor(after)).logits
        torch.testing.assert_close(logits, full_logits(model, kept)[-3:], rtol=0, atol=1e-4)


def test_features_are_the_hidden_states_of_the_layers_asked_for(model) -> None:
    prompt = random_prompts(1, 8, seed=7)[0]
    with torch.inference_mode():
        states = model.network(input_ids=torch.tensor([prompt]), output_hidden_states=True).hidden_states
    layers = (0, len(states) - 1)
    sequence = ModelSequence(model, layers=layers)
    first, second = sequence.read(torch.tensor(prompt[:5])), sequence.fork().extend(torch.tensor(prompt[5:]))
    assert first.logits.shape[0] == 1
    for layer in layers:
        joined = torch.cat([first.features[layer], second.features[layer]])
        torch.testing.assert_close(joined, states[layer][0], rtol=0, atol=1e-4)
        torch.testing.assert_close(second.at(slice(2)).features[layer], joined[5:7])
    assert ModelSequence(model).extend(torch.tensor(prompt)).features == {}


def test_a_pass_over_texts_has_the_features_of_each_alone(model) -> None:
    texts = [([1, 2, 3, 4, 5], [6, 7]), ([8], [9, 10, 11])]
    passes = teacher_forced(model, *zip(*texts, strict=True), layers=[1])
    for (prompt, written), forward in zip(texts, passes, strict=True):
        alone = ModelSequence(model, layers=[1]).extend(torch.tensor([*prompt, *written]))
        torch.testing.assert_close(forward.features[1], alone.features[1], rtol=0, atol=1e-4)
        torch.testing.assert_close(forward.logits, alone.logits[len(prompt) - 1 : -1], rtol=0, atol=1e-4)


def test_work_can_be_repeated(model) -> None:
    context = random_prompts(1, 6, seed=8)[0]
    for work in repeatable_forwards(model, context, rows=2, sizes=(1, 3)).values():
        first = work.run()
        work.undo()
        torch.testing.assert_close(work.run().logits, first.logits, rtol=0, atol=1e-5)
        work.undo()
