"""A model at several depths: the numbers of one evaluation after another, taken in turns."""

import dataclasses
import math

import numpy as np
import pytest

from diffeqformer.data.loader import EvaluationBatches
from diffeqformer.errors import BadInput
from diffeqformer.evaluation.depth import DepthCurve, Mark, at_depths, possible_depths, usual_depths
from diffeqformer.evaluation.perplexity import evaluate_in_turns
from tests.models import KINDS, TINY, logits, model_of, tokens
from tests.tolerances import LOSS

BATCHES = list(EvaluationBatches(np.asarray(tokens(1, 80)[0]), TINY.context, 3))


def by_hand(model, steps: int) -> float:
    """Mean nats a token from the logits themselves."""
    nats = []
    for ids, mask in BATCHES:
        out = np.asarray(logits(model, ids[:, :-1], steps), np.float64)
        out -= out.max(-1, keepdims=True)
        chosen = np.take_along_axis(out, ids[:, 1:, None], -1)[..., 0]
        nats.append((np.log(np.exp(out).sum(-1)) - chosen)[mask])
    return float(np.concatenate(nats).mean())


def test_every_depth_is_evaluated_as_by_hand():
    model, depths = model_of(TINY), (2, 5)
    found = at_depths(model, BATCHES, depths, bytes_=200)
    assert [one.attention_evaluations for one in found] == [2, 5]
    for steps, one in zip(depths, found, strict=True):
        assert one.loss == pytest.approx(by_hand(model, steps), rel=LOSS)
        assert one.perplexity == pytest.approx(math.exp(one.loss)) and one.tokens == 79 and one.tokens_per_second > 0
        assert one.bits_per_byte == pytest.approx(one.loss * 79 / math.log(2) / 200)


def test_different_models_take_turns_on_the_same_batches():
    ours, vanilla = model_of(TINY), model_of(KINDS["vanilla"])
    seen = []

    class Watched(list):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                seen.append(number)
                yield batch

    found = evaluate_in_turns([(ours, 4), (vanilla, None)], Watched(BATCHES))
    assert seen == list(range(len(BATCHES)))
    for one, (model, steps) in zip(found, ((ours, 4), (vanilla, 3)), strict=True):
        assert one.loss == pytest.approx(by_hand(model, steps), rel=LOSS)
    assert found[0].bits_per_byte is None


def test_a_table_of_layers_is_refused_before_anything_is_evaluated():
    class Untouched:
        def __iter__(self):
            raise AssertionError("evaluated")

    with pytest.raises(BadInput, match="a table of 3 layers and cannot run at 4 steps"):
        at_depths(model_of(KINDS["vanilla"]), Untouched(), (3, 4))


def test_usual_depths():
    assert usual_depths(6) == (3, 4, 5, 6, 7, 8, 9, 12)
    assert usual_depths(18) == (9, 12, 17, 18, 19, 24, 27, 36)
    assert usual_depths(1) == (1, 2)
    assert usual_depths(6, (6,)) == usual_depths(6)
    assert usual_depths(6, (2, 3, 8, 12)) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 24)
    assert usual_depths(2, (1, 2)) == (1, 2, 3, 4)
    some_left_out = dataclasses.replace(KINDS["vanilla"], weights="layerdrop", horizon="unit")
    possible = lambda config: possible_depths(model_of(config), usual_depths(3))
    assert usual_depths(3) == possible(TINY) == (2, 3, 4, 6)
    assert (possible(some_left_out), possible(KINDS["vanilla"])) == ((2, 3), (3,))


def test_arrays_hold_every_number():
    (found,) = at_depths(model_of(TINY), BATCHES, (3,))
    other = dataclasses.replace(found, loss=1.0)
    curve = DepthCurve("a", 3, {3: found}, (Mark("LoRA", True, "runs/b", 4, other),))
    arrays = curve.arrays()
    assert arrays["steps"].tolist() == [3] and arrays["loss"].tolist() == [found.loss]
    assert np.isnan(arrays["bits_per_byte"]).all() and arrays["own_steps"] == 3
    assert arrays["against_loss"].tolist() == [1.0] and arrays["against_steps"].tolist() == [4]
    assert arrays["against_run"].tolist() == ["runs/b"] and arrays["against_fine_tuned"].tolist() == [True]
    assert not [name for name in DepthCurve("a", 3, {3: found}).arrays() if name.startswith("against")]
