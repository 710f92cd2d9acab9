"""A continuous model, exported, runs in Transformers at any depth, and comes back."""

import copy
import dataclasses
import itertools

import jax
import numpy as np
import pytest

from diffeqformer.interop.exporting import export
from diffeqformer.interop.huggingface import from_huggingface
from diffeqformer.interop.importing import import_huggingface
from diffeqformer.model.loss import next_token_loss
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.sharding import by_path
from tests.interop.runs import CONTINUOUS, run_of
from tests.interop.test_exporting_live import (
    gradients_without_and_with_checkpoints,
    greedy,
    load,
    own_module_cache,  # noqa: F401
    theirs,
)
from tests.models import TINY, logits, tokens
from tests.tolerances import GRADIENT, STATES

pytestmark = pytest.mark.torch


def long(ids):
    import torch

    return torch.from_numpy(np.array(ids)).long()


@pytest.fixture
def folder(tmp_path):
    """An exported model of time networks."""
    return export(run_of("time, llama"), tmp_path / "made").folder


def largest_difference(one, other) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_logits_at_several_depths(kind, tmp_path):
    run, ids = run_of(kind), tokens()
    made = export(run, tmp_path / "made")
    model = load(tmp_path / "made")
    assert type(model).__name__ == made.architecture == "DiffEqFormerForCausalLM" and made.continuous
    assert sum(parameter.numel() for parameter in model.parameters()) == made.parameters
    config = dataclasses.replace(run.model.config, compute_dtype="float32")  # in Transformers: the precision of loading
    here = dataclasses.replace(run.model, config=config)
    for steps in (3, 2, 6):
        difference = largest_difference(theirs(model.set_steps(steps), ids), logits(here, ids, steps))
        print(f"{kind}, {steps} steps: {difference:.1e}")
        assert difference <= STATES


def test_ways_to_a_depth(folder):
    ids = tokens()
    model = load(folder)
    assert model.config.steps == 3
    expected = theirs(load(folder, steps=5), ids)
    assert largest_difference(expected, theirs(model, ids)) > 0.1
    other = model.with_steps(5)
    np.testing.assert_array_equal(theirs(other, ids), expected)
    assert model.config.steps == 3 and other.head.weight is model.head.weight
    text = greedy(other, ids[:, :4], 6)
    np.testing.assert_array_equal(greedy(model, ids[:, :4], 6, steps=5), text)
    np.testing.assert_array_equal(greedy(model, ids[:, :4], 6, use_cache=False, steps=5), text)
    assert model.config.steps == 3
    np.testing.assert_array_equal(theirs(model.set_steps(5), ids), expected)
    model.set_steps(2).save_pretrained(folder.parent / "shallow")
    assert load(folder.parent / "shallow").config.steps == 2


def test_what_is_no_depth_is_refused(folder, tmp_path):
    model = load(folder)
    for steps in (0, -1, 2.0, True, "3"):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            model.set_steps(steps)
    export(run_of("time, llama"), tmp_path / "table", steps=3)
    sentence = "this model is a table of 3 layers and cannot run at 4 steps"
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path / "table").set_steps(4)
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path / "table", steps=4)


@pytest.mark.parametrize("kind", ["time, gpt", "knots, llama"])
def test_weights_are_generated_once_for_a_depth(kind, tmp_path):
    import torch

    export(run_of(kind), tmp_path / "made")
    model, ids = load(tmp_path / "made"), tokens()
    first = theirs(model, ids)
    rows = model.model.kept[3][1]
    theirs(model.with_steps(2), ids)
    np.testing.assert_array_equal(theirs(model, ids), first)
    assert model.model.kept[3][1] is rows and sorted(model.model.kept) == [2, 3]
    with torch.inference_mode():  # what it keeps is fit for training, too
        model.with_steps(4)(long(ids))
    vectors = torch.randn(1, 4, 16, requires_grad=True)
    model.requires_grad_(False).with_steps(4)(inputs_embeds=vectors).logits.sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    changed = theirs(model, ids)
    assert largest_difference(changed, first) > 1e-3 and model.model.kept[3][1] is not rows
    model.save_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(theirs(load(tmp_path / "again"), ids), changed)
    np.testing.assert_array_equal(theirs(copy.deepcopy(model), ids), changed)


def test_gradients_equal_ours(tmp_path):
    """By the names that `import` gives the parameters: those of the time networks, too."""
    run, ids = run_of("time, llama"), tokens()
    export(run, tmp_path / "made")
    ours = by_path(jax.jit(jax.grad(next_token_loss))(run.model, ids))
    model = load(tmp_path / "made")
    model(long(ids), labels=long(ids)).loss.backward()
    for parameter in model.parameters():
        parameter.data = parameter.grad
    model.save_pretrained(tmp_path / "gradients")
    found = by_path(from_huggingface(tmp_path / "gradients"))
    assert found.keys() == ours.keys()
    for name, gradient in ours.items():
        scale = float(np.linalg.norm(gradient))
        assert scale > 0 and float(np.linalg.norm(found[name] - gradient)) <= GRADIENT * scale, name


def test_trained_there_and_imported_back(folder, tmp_path):
    """Still a function of depth, with the numbers that it has there."""
    import torch
    from transformers import AutoTokenizer

    model, ids = load(folder).train(), tokens()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(5):
        losses.append(model(long(ids), labels=long(ids)).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.1, losses
    model.eval().save_pretrained(tmp_path / "tuned")
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True).save_pretrained(tmp_path / "tuned")
    back = import_huggingface(tmp_path / "tuned", tmp_path / "run")
    assert back.config.model.time and back.config.model.embedding_norm
    assert largest_difference(theirs(model.set_steps(5), ids), logits(back.model, ids, 5)) <= STATES


@pytest.mark.parametrize("kind", ["time, gpt", "knots, llama"])
def test_checkpointing_changes_no_gradient(kind, tmp_path):
    export(run_of(kind), tmp_path / "made")
    for one, other in zip(*gradients_without_and_with_checkpoints(tmp_path / "made"), strict=True):
        assert (one - other).norm() <= GRADIENT * one.norm()


@pytest.mark.parametrize("kind", ["time, gpt", "time, llama", "one mlp, llama"])
def test_a_shallow_draft_changes_no_text(kind, tmp_path):
    """Transformers' assisted decoding, with the same model at fewer steps as the assistant."""
    export(run_of(kind), tmp_path / "made")
    model, ids = load(tmp_path / "made"), tokens()[:1, :3]
    expected = greedy(model, ids, 8)
    np.testing.assert_array_equal(greedy(model, ids, 8, assistant_model=model.with_steps(1)), expected)


def test_early_exit(tmp_path):
    import torch

    run, ids = run_of("time, gpt"), tokens()
    export(run, tmp_path / "made")
    model = load(tmp_path / "made").set_steps(6)
    plain = theirs(model, ids)
    assert largest_difference(theirs(model, ids, exit_threshold=0.0), plain) <= STATES
    with torch.no_grad():
        found = model(long(ids), exit_threshold=1e6, output_hidden_states=True)
    assert len(found.hidden_states) == 3  # the start, and two steps: after one nothing can be compared
    threshold = 0.3
    ours = run.model(ids, steps=EarlyExit(6, threshold))
    assert largest_difference(ours, plain) > 1e-2
    assert largest_difference(theirs(model, ids, exit_threshold=threshold), ours) <= STATES
    greedy(model, ids[:, :4], 3, use_cache=False, exit_threshold=threshold)
    with pytest.raises(ValueError, match="exit_threshold needs use_cache=False"):
        greedy(model, ids[:, :4], 3, exit_threshold=threshold)


def test_early_exit_of_two_states_is_refused(tmp_path):
    export(run_of("one mlp, llama"), tmp_path / "made")
    with pytest.raises(ValueError, match="needs a scheme that carries the state alone"):
        theirs(load(tmp_path / "made"), tokens(), exit_threshold=0.1)


def test_states_and_attentions(folder):
    import torch

    ids = long(tokens())
    with pytest.raises(ValueError, match="needs attn_implementation='eager'"):
        load(folder)(ids, output_attentions=True)
    model = load(folder, attn_implementation="eager", steps=4)
    with torch.no_grad():
        found = model(ids, output_attentions=True, output_hidden_states=True)
    assert len(found.hidden_states) == 5 and len(found.attentions) == 4
    for looked in found.attentions:
        assert looked.shape == (2, 2, 12, 12) and looked.triu(1).abs().max() == 0
        torch.testing.assert_close(looked.sum(-1), torch.ones(2, 2, 12))


def test_without_a_head_and_with_a_classifier(folder):
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    ids, settings = long(tokens()), {"trust_remote_code": True, "steps": 4}
    model = load(folder, steps=4)
    with torch.no_grad():
        state = AutoModel.from_pretrained(folder, **settings).eval()(ids).last_hidden_state
        torch.testing.assert_close(model.head(state), model(ids).logits)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, **settings).eval()
    assert classifier.config.steps == 4 and classifier.with_steps(2).model.config.steps == 2
    found = classifier(ids, labels=torch.tensor([0, 2]))
    torch.testing.assert_close(found.logits, classifier.score(state[:, -1]))
    found.loss.backward()
    assert classifier.model.networks["attention"]["output"].projection.grad.abs().max() > 0


def test_half_precision(folder):
    """Weights are generated in float32 and rounded once; the state is kept in float32."""
    import torch

    model, ids = load(folder, dtype=torch.bfloat16, steps=12), tokens()
    network = model.model.networks["attention"]["output"].network
    assert network.first.weight.dtype == torch.float32 and model.head.weight.dtype == torch.bfloat16
    assert model.model.networks["attention"]["output"].projection.dtype == torch.bfloat16  # most of the parameters
    wide = theirs(load(folder, steps=12), ids)
    narrow = model(long(ids)).logits.float().detach().numpy()
    error = np.sqrt(np.square(narrow - wide).mean() / np.square(wide).mean())
    print(f"relative to the logits: {error:.1e}")
    assert error <= 8 * 2**-8  # a few roundings of 2^-9 each on the way of one number, and their growth


@pytest.mark.parametrize("kind", ["one mlp, gpt", "knots, gpt"])
def test_autocast_does_not_round_generated_weights(kind, tmp_path):
    import torch

    model = load(export(run_of(kind), tmp_path / "made").folder).model
    expected = model._generated()
    with torch.autocast("cpu", torch.bfloat16):
        found = model._generated()
    for one, other in zip(itertools.chain(*expected), itertools.chain(*found), strict=True):
        torch.testing.assert_close(other.norm.weight, one.norm.weight, rtol=0, atol=0)


def test_adapters_on_the_networks_of_time(folder, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    adapted = lambda folder: get_peft_model(load(folder), LoraConfig(r=2, target_modules="all-linear"))
    model, ids = adapted(folder), tokens()
    before = theirs(model.eval(), ids)
    model(long(ids), labels=long(ids)).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.sub_(0.1 * parameter.grad.sign())
    assert largest_difference(theirs(model, ids), before) > 1e-2
    export(run_of("knots, llama"), tmp_path / "knots")
    with pytest.raises(ValueError, match="adapters cannot be interpolated between knots; export the model at"):
        theirs(adapted(tmp_path / "knots"), ids)


def test_a_new_model_can_learn(folder):
    """From the config alone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    model(long(tokens()), labels=long(tokens())).loss.backward()
    assert model.model.networks["feed_forward"]["up"].projection.grad.abs().max() > 0


def test_the_horizon_is_kept_at_other_depths(tmp_path):
    run, ids = run_of(dataclasses.replace(TINY, weights="shared", horizon="steps")), tokens()
    export(run, tmp_path / "made")
    assert largest_difference(theirs(load(tmp_path / "made", steps=2), ids), logits(run.model, ids, 2)) <= STATES


@pytest.mark.parametrize("basis", ["hat", "cubic", "box"])
def test_a_basis_is_ours_wherever_a_step_may_end(basis):
    """Boxes jump halfway between knots, where l / N * K is off by a rounding."""
    import torch

    from diffeqformer.interop.torch.weights_diffeqformer import cardinal_basis as theirs_at
    from diffeqformer.interop.torch.weights_diffeqformer import mean_basis as theirs_over
    from diffeqformer.ode.grid import Grid
    from diffeqformer.ode.weights.knots import PLACES, cardinal_basis, mean_basis

    for knots, steps, spacing in itertools.product(
        (1, 5, 6, 12), (*range(1, 14), 24, 100), ("equal", "dyadic", "thirds")
    ):
        grid = Grid.of(steps, spacing=spacing)
        for place, node in PLACES.items():
            times, edges = (torch.from_numpy(np.array(each)) for each in (grid.times((node,)), grid.edges))
            ours = cardinal_basis(times.numpy(), knots, basis, place)
            # Values of at most about 1, computed in float64 and rounded to float32 once.
            np.testing.assert_allclose(theirs_at(times, knots, basis, place), ours, rtol=0, atol=2e-7)
            ours = mean_basis(edges.numpy(), knots, basis, place)
            np.testing.assert_allclose(theirs_over(edges, knots, basis, place), ours, rtol=0, atol=2e-7)
