"""The code exported for transformers, run as it stands: it proposes the K it was given."""

import pytest
import torch
from transformers.generation import candidate_generator

from spectune.drafting_spec import draft_spec
from spectune.engines.config import engine_config
from spectune.engines.speculation import Speculation
from tests.checkpoints import save_checkpoint


@pytest.mark.parametrize(
    ("draft", "generator"),
    [
        ("small", "AssistedCandidateGenerator"),
        ("layers:1", "EarlyExitCandidateGenerator"),
        ("ngram:min=1,max=3", "PromptLookupCandidateGenerator"),
    ],
)
@pytest.mark.parametrize("k", [2, 5])
def test_every_draft_proposes_k_tokens(draft, generator, k, tmp_path, monkeypatch) -> None:
    for seed, name in enumerate(("target", "small")):
        save_checkpoint(tmp_path / name, seed=seed)
    monkeypatch.chdir(tmp_path)
    proposed: list[int] = []
    whole = getattr(candidate_generator, generator).get_candidates

    def counted(self, input_ids, *args, **kwargs):
        found = whole(self, input_ids, *args, **kwargs)
        proposed.append(found[0].shape[1] - input_ids.shape[1])
        return found

    monkeypatch.setattr(getattr(candidate_generator, generator), "get_candidates", counted)
    text = engine_config(
        Speculation(
            target="target", draft=draft_spec(draft), num_speculative_tokens=k, temperature=0.0, top_p=1.0, top_k=0,
            dtype="float32", schedule=[], lengths={},
        ),
        "transformers",
    ).text  # fmt: skip
    names = {"inputs": {"input_ids": torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]]), "max_new_tokens": 24}}
    exec(text, names)
    room = min(k, 4) if draft.startswith("ngram") else k  # a lookup copies what follows, up to the text's end
    assert max(proposed) == room
    assert draft.startswith("ngram") or set(proposed[:-1]) == {k}  # the last has less room
