"""What is exported gives, in Transformers and PEFT, the numbers that it gives here."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import LoRAConfig
from diffeqformer.data.tokenizer import train_tokenizer
from diffeqformer.interop.exporting import export
from diffeqformer.interop.importing import import_huggingface
from diffeqformer.model.generate import generate
from diffeqformer.runs.opening import Run, load_run
from tests.cases import slow_but
from tests.interop.runs import EXPORTED, STOCK, run_of
from tests.models import logits, model_of, tokens
from tests.tolerances import STATES

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def own_module_cache(tmp_path, monkeypatch):
    """Transformers copies an exported model's code into a cache of modules: into one of this test's own."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:  # another test's
        del sys.modules[name]


def load(folder, **settings):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **settings).eval()


def theirs(model, ids, **settings) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(np.array(ids)).long(), **settings).logits.numpy()


def gradients_without_and_with_checkpoints(folder) -> tuple[list, list]:
    """The parameters' gradients of a model that is loaded from `folder`, twice."""
    import torch

    ids, found = torch.from_numpy(np.array(tokens())).long(), ([], [])
    for checkpointed, gradients in enumerate(found):
        model = load(folder).train()
        if checkpointed:
            model.activation_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        gradients.extend(parameter.grad for parameter in model.parameters())
    return found


def greedy(model, ids, number: int, **settings) -> np.ndarray:
    """New tokens by the model's own `generate`, end-of-text being a token like any other."""
    import torch

    prompt = torch.from_numpy(np.array(ids)).long()
    every = {"eos_token_id": None, "max_length": None, "max_new_tokens": number, "do_sample": False}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **every, **settings)[
        :, ids.shape[1] :
    ].numpy()


def greedy_here(run: Run, ids) -> np.ndarray:
    """The same here, for the first four of 12 tokens: causal logits, of which later tokens do not matter."""
    ids = np.array(ids)
    for position in range(4, 12):
        ids[:, position] = np.asarray(logits(run.model, jnp.asarray(ids)))[:, position - 1].argmax(-1)
    return ids[:, 4:]


QUICK = (
    "diffeqformer",
    "vanilla",
    "vanilla llama, grouped queries",
    "time, llama, nested norm",
    "macaron",
    "time, reversible",
    "time, llama as released",
)


@pytest.mark.parametrize("kind", slow_but(QUICK, EXPORTED))
def test_logits_and_greedy_generation(kind, tmp_path):
    run = run_of(dataclasses.replace(EXPORTED[kind], compute_dtype="float32"))  # there: the precision of loading
    made = export(run, tmp_path / "made")
    model = load(tmp_path / "made")
    assert type(model).__name__ == made.architecture == STOCK.get(kind, "DiffEqFormerForCausalLM")
    assert sum(parameter.numel() for parameter in model.parameters()) == made.parameters
    ids = tokens()
    ours = np.asarray(logits(run.model, ids))
    difference = np.abs(theirs(model, ids) - ours).max()
    print(f"{kind}: largest difference of a logit: {difference:.1e} of {np.abs(ours).max():.1f}")
    assert difference <= STATES
    expected = greedy_here(run, ids)
    np.testing.assert_array_equal(greedy(model, ids[:, :4], 8), expected)
    np.testing.assert_array_equal(greedy(model, ids[:, :4], 8, use_cache=False), expected)
    model.set_attn_implementation("eager")
    assert np.abs(theirs(model, ids) - ours).max() <= STATES


@pytest.mark.parametrize("kind", ["diffeqformer", "ode transformer", "vanilla"])
def test_generation_here_and_there(kind, tmp_path):
    """With this library's own cache: a slot for each attention evaluation, as there."""
    run, prompt = run_of(kind), tokens(positions=4)
    export(run, tmp_path / "made")
    expected = generate(run.model, prompt, 8, key=jax.random.key(0), temperature=0.0)
    np.testing.assert_array_equal(greedy(load(tmp_path / "made"), prompt, 8), expected)


def test_another_depth_and_another_precision(tmp_path):
    import torch

    run, ids = run_of("diffeqformer"), tokens()
    export(run, tmp_path / "five", steps=5)
    ours = np.asarray(logits(run.model, ids, 5))
    assert np.abs(theirs(load(tmp_path / "five"), ids) - ours).max() <= STATES
    export(run, tmp_path / "narrow", steps=5, dtype="bfloat16", shard_bytes=4000)
    assert (tmp_path / "narrow" / "model.safetensors.index.json").is_file()
    model = load(tmp_path / "narrow")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    wide = load(tmp_path / "narrow", dtype=torch.float32)
    assert STATES < np.abs(theirs(wide, ids) - ours).max() < 0.2


@pytest.mark.parametrize("kind", ["diffeqformer", "time, llama, nested norm", "time, midpoint"])
def test_states_loss_padding_and_a_round_trip(kind, tmp_path):
    import torch

    run, ids = run_of(kind), tokens()
    export(run, tmp_path / "made")
    model, long = load(tmp_path / "made"), torch.from_numpy(np.array(ids)).long()
    with torch.no_grad():
        found = model(long, labels=long, output_hidden_states=True)
        states = np.stack([state.numpy() for state in found.hidden_states])
        np.testing.assert_allclose(states, run.model.trajectory(ids), atol=STATES)
        expected = torch.nn.functional.cross_entropy(found.logits[:, :-1].reshape(-1, 40), long[:, 1:].reshape(-1))
        torch.testing.assert_close(found.loss, expected)

        padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), long[:1, :7]], dim=1)
        mask = torch.tensor([[0] * 5 + [1] * 7])
        several = model(torch.cat([padded, long[1:]]), attention_mask=torch.cat([mask, torch.ones_like(mask)]))
        torch.testing.assert_close(several.logits[0, 5:], found.logits[0, :7], atol=STATES, rtol=0)
        torch.testing.assert_close(several.logits[1], found.logits[1], atol=STATES, rtol=0)
        settings = {"eos_token_id": None, "max_length": None, "max_new_tokens": 5, "do_sample": False}
        batch = torch.cat([padded[:, 5:], long[1:, :7]])
        left = torch.cat([torch.zeros(1, 4, dtype=torch.long), batch[:1, :3]], dim=1)
        mask = torch.tensor([[0] * 4 + [1] * 3, [1] * 7])
        both = model.generate(torch.cat([left, batch[1:]]), attention_mask=mask, **settings)
        torch.testing.assert_close(both[0, 7:], model.generate(batch[:1, :3], **settings)[0, 3:])
        torch.testing.assert_close(both[1, 7:], model.generate(batch[1:], **settings)[0, 7:])

    model.save_pretrained(tmp_path / "again")
    assert np.abs(theirs(load(tmp_path / "again"), ids) - found.logits.numpy()).max() == 0


def test_too_long_a_text_is_refused(tmp_path):
    export(run_of("diffeqformer"), tmp_path / "made")
    with pytest.raises(ValueError, match="the text has 13 tokens, but the model knows positions of 12 only"):
        theirs(load(tmp_path / "made"), tokens(positions=13))


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla"])
def test_pipeline(kind, tmp_path):
    from transformers import AutoTokenizer, pipeline

    run = run_of(kind)
    export(run, tmp_path / "made")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made", trust_remote_code=True)
    text = "the cat sees the stars"
    assert tokenizer(text)["input_ids"] == run.tokenizer.encode(text).ids
    assert tokenizer.eos_token == tokenizer.bos_token == tokenizer.pad_token == "</s>"
    pipe = pipeline("text-generation", model=load(tmp_path / "made"), tokenizer=tokenizer)
    (one,) = pipe(text, do_sample=False)
    assert one["generated_text"].startswith(text)
    model, ids = load(tmp_path / "made"), tokenizer(text, return_tensors="pt")
    whole = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    lengths = [
        model.generate(**ids, **whole, **given).shape[1] for given in ({}, {"max_length": 7}, {"max_new_tokens": 4})
    ]
    assert lengths == [12, 7, 9]  # the context, where no length is given
    several = pipe(["the cat", text], do_sample=False, max_new_tokens=4, batch_size=2)
    assert [part[0]["generated_text"].startswith(start) for part, start in zip(several, ["the cat", text], strict=True)]


def test_the_tokenizer_of_a_model_like_qwen_2_stays_as_it_is(tmp_path):
    """Qwen's own class would read every digit as a token."""
    from transformers import AutoTokenizer

    text = "in 1234 the cat sees 12 dogs"
    run = run_of(dataclasses.replace(EXPORTED["qwen 2"], vocabulary=280))
    run = dataclasses.replace(run, tokenizer=train_tokenizer([text] * 9, 280))
    export(run, tmp_path / "made")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made", trust_remote_code=True)
    assert tokenizer(text)["input_ids"] == run.tokenizer.encode(text).ids


@pytest.mark.parametrize("kind", ["diffeqformer", "one mlp, strang"])
def test_gradient_checkpointing_changes_no_gradient(kind, tmp_path):
    import torch

    export(run_of(kind), tmp_path / "made")
    torch.testing.assert_close(*gradients_without_and_with_checkpoints(tmp_path / "made"))


# ----- PEFT

ADAPTED = {
    "gpt": "parallel blocks",
    "gpt, a row a node": "macaron",
    "gpt2": "vanilla",
    "llama": "vanilla llama, grouped queries",
}


def adapted_run(kind: str, targets: tuple[str, ...] = ("*",)) -> Run:
    """A run whose adapters are random, so that they change the logits."""
    lora = LoRAConfig(rank=3, alpha=6.0, dropout=0.1, targets=targets)
    weights = dataclasses.replace(EXPORTED[kind].weights, lora=lora)
    config = dataclasses.replace(EXPORTED[kind], weights=weights)
    assert model_of(config).config.lora
    return run_of(config)


@pytest.mark.parametrize("kind", ADAPTED.values(), ids=ADAPTED.keys())
def test_our_adapters_in_peft(kind, tmp_path):
    from peft import PeftModel

    run, ids = adapted_run(kind), tokens()
    ours = np.asarray(logits(run.model, ids))
    export(run, tmp_path / "made", adapter=True)
    base = load(tmp_path / "made")
    assert np.abs(theirs(base, ids) - ours).max() > 0.1
    model = PeftModel.from_pretrained(base, tmp_path / "made" / "adapter").eval()
    assert np.abs(theirs(model, ids) - ours).max() <= STATES
    assert np.abs(theirs(model.merge_and_unload(), ids) - ours).max() <= STATES
    export(run, tmp_path / "merged")
    assert np.abs(theirs(load(tmp_path / "merged"), ids) - ours).max() <= STATES


def test_some_adapters_only(tmp_path):
    from peft import PeftModel

    run, ids = adapted_run("vanilla", ("attention.output", "up")), tokens()
    export(run, tmp_path / "made", adapter=True)
    model = PeftModel.from_pretrained(load(tmp_path / "made"), tmp_path / "made" / "adapter").eval()
    adapted = {name.rpartition(".lora_A")[0] for name, _ in model.named_parameters() if "lora_A" in name}
    assert {name.partition("h.")[2][2:] for name in adapted} == {"attn.c_proj", "mlp.c_fc"}
    assert np.abs(theirs(model, ids) - np.asarray(logits(run.model, ids))).max() <= STATES


def test_peft_trains_an_exported_model(tmp_path):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model

    export(run_of("diffeqformer"), tmp_path / "made", steps=3)
    names = ["query_key_value", "output", "up", "down"]
    model = get_peft_model(load(tmp_path / "made"), LoraConfig(r=2, target_modules=names, task_type="CAUSAL_LM"))
    ids = torch.from_numpy(np.array(tokens())).long()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    losses = []
    for _ in range(4):
        loss = model(ids, labels=ids).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.01, losses
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(load(tmp_path / "made"), tmp_path / "adapter").eval()
    assert np.abs(theirs(again, tokens()) - theirs(model.eval(), tokens())).max() <= STATES


PEFT_TARGETS = {
    "gpt": ["query_key_value", "down"],
    "gpt, a row a node": ["output", "up"],
    "gpt2": ["c_attn", "c_fc"],
    "llama": ["q_proj", "v_proj", "gate_proj"],
}


@pytest.mark.parametrize("kind", ADAPTED.values(), ids=ADAPTED.keys())
@pytest.mark.parametrize("rslora", [False, True])
def test_adapters_of_peft_are_read(kind, rslora, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    run, ids = run_of(kind), tokens()
    export(run, tmp_path / "made")
    name = next(name for name, other in ADAPTED.items() if other == kind)
    asked = LoraConfig(r=2, lora_alpha=5, use_rslora=rslora, target_modules=PEFT_TARGETS[name], task_type="CAUSAL_LM")
    model = get_peft_model(load(tmp_path / "made"), asked).eval()
    torch.manual_seed(0)
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "adapter")
    ours = import_huggingface(tmp_path / "made", tmp_path / "run", adapter=tmp_path / "adapter")
    found = np.asarray(logits(ours.model, ids))
    assert np.abs(np.asarray(logits(run.model, ids)) - found).max() > 0.1
    assert np.abs(theirs(model, ids) - found).max() <= STATES
    np.testing.assert_array_equal(np.asarray(logits(load_run(tmp_path / "run").model, ids)), found)
