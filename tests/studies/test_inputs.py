"""What studies say of the run that they read."""

from types import SimpleNamespace

import numpy as np
import pytest

from diffeqformer.config import Config, ModelConfig, ToleranceConfig, dump_yaml, to_dict
from diffeqformer.data.tokenizer import end_of_text, train_tokenizer
from diffeqformer.errors import BadInput
from diffeqformer.store.files import write_sealed
from diffeqformer.studies.inputs import directions, of_one_document, whole_split


@pytest.mark.parametrize(
    ("step", "steps", "tolerance", "said"),
    [(6, 3, None, True), (6, 4, None, False), (4, 3, None, False), (6, 3, ToleranceConfig(), False)],
)
def test_the_loss_of_the_whole_split_is_told_beside_the_model_that_had_it_alone(step, steps, tolerance, said, tmp_path):
    config = Config(model=ModelConfig(tolerance=tolerance))
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    entry = {"updates": 6, "steps": 3, "validation": {"loss": 5.654, "perplexity": 285.5}, "config": to_dict(config)}
    write_sealed(tmp_path / "results.json", {"models": [entry]})
    found = whole_split(SimpleNamespace(folder=tmp_path, step=step, config=config), steps)
    assert found == (
        " On its whole validation split the run has 5.654 nats per token, perplexity 285.5." if said else ""
    )


def test_a_text_is_of_one_document():
    tokenizer = train_tokenizer(["a small text"], 270)
    end = end_of_text(tokenizer)
    run = SimpleNamespace(tokenizer=tokenizer)
    for tokens, longest in (([1, 2, end, 3, 4, 5, end, 6], [3, 4, 5]), ([1, 2], [1, 2]), ([end, end], []), ([], [])):
        assert of_one_document(run, np.array(tokens, np.int32)).tolist() == longest


def test_as_many_directions_as_a_state_has():
    assert (
        directions(None, None, 64) == (4, 16) and directions(None, None, 3) == (3, 3) and directions(2, 5, 8) == (2, 5)
    )
    with pytest.raises(BadInput, match="--probes is 16, but must be from 2 to the model's width, 8."):
        directions(None, 16, 8)
    with pytest.raises(BadInput, match="--tangents is 0, but must be from 1 to the model's width, 8."):
        directions(0, None, 8)
