"""A language model whose layers are the steps of an ODE solver, for Hugging Face Transformers 5.

    x(0)   = embed(ids)
    dx/dt  = A_t(x) + M_t(x)          A: attention block, M: feed-forward block
    logits = head(norm(x(end)))

Where the weights are functions of depth, the model runs at any number of steps: `from_pretrained(folder, steps=12)`,
`model.set_steps(6)`, `model.with_steps(2)`, `model.generate(..., steps=4)`. The weights for a number of steps are
generated once and kept until a parameter changes. The state after step l is `hidden_states[l]`; `attentions` has one
entry per evaluation of A.
Written by diffeqformer, which trains such models in JAX. These files need torch and transformers only.
"""

import copy
from itertools import count

import torch
from torch import nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple

from .configuration_diffeqformer import DiffEqFormerConfig, EarlyExit
from .weights_diffeqformer import (
    Attention,
    FeedForward,
    TimeLinear,
    TimeNetwork,
    eager_attention,
    generate,
    generated_row,
    interpolate,
    norm_of,
    rotary_angles,
    time_networks,
    wide,
)

SOURCES = ("networks.", "shared.", "attention.", "feed_forward.")
"""Name prefixes of the parameters that rows are generated from."""


class Embedding(nn.Module):
    """Sum of a token's vector and, in the GPT family, its position's learned vector."""

    def __init__(self, config):
        super().__init__()
        learned = config.learned_positions
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else None
        self.epsilon = config.norm_epsilon if config.embedding_norm else None

    def forward(self, vectors, position_ids):
        x = vectors if self.positions is None else vectors + self.positions(position_ids)
        return x if self.epsilon is None else x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


class DiffEqFormerPreTrainedModel(PreTrainedModel):
    """Base class of the model with any head, or none."""

    config_class = DiffEqFormerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules, _skip_keys_device_placement = ["Attention", "FeedForward"], ["past_key_values"]
    _supports_sdpa = _supports_flash_attn = _supports_attention_backend = True
    # Time networks: small, and all weights depend on them. Transformers searches names for these patterns: "network"
    # alone would be found in "networks", too, the prefix of everything that generates weights.
    _keep_in_fp32_modules_strict = [r"\bnetwork\b", r"\bshared\b"]

    def set_steps(self, steps: int):
        """Change the number of depth steps, in place."""
        self.config.steps = steps
        return self

    def with_steps(self, steps: int):
        """Return the model at another number of steps, sharing parameters: a draft model for `assistant_model`."""
        config = copy.deepcopy(self.config)
        config.steps = steps
        other = _sharing(self, config)
        if isinstance(base := getattr(self, "model", None), DiffEqFormerModel):
            other.model = _sharing(base, config)
        if self.can_generate():
            other.generation_config = copy.deepcopy(self.generation_config)
        return other

    def get_input_embeddings(self):
        return getattr(self, "model", self).embedding.tokens

    def set_input_embeddings(self, value):
        getattr(self, "model", self).embedding.tokens = value

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, TimeLinear):
            nn.init.normal_(module.projection, std=self.config.initializer_range)


def _sharing(module, config):
    """Copy a module, with another config and the same submodules."""
    other = copy.copy(module)
    other._modules, other.config = dict(module._modules), config
    return other


class DiffEqFormerModel(DiffEqFormerPreTrainedModel):
    """The model without a head: its last hidden state is x(end), after the final norm."""

    gradient_checkpointing = False  # of generated rows; set by Transformers

    def __init__(self, config: DiffEqFormerConfig):
        super().__init__(config)
        self.embedding = Embedding(config)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.final_norm = norm_of(config, final=True)
        self.kept = {}  # by number of steps: the parameters' state, and the rows generated from it
        weights, nodes = config.weights, self._nodes()
        if weights["kind"].startswith("time"):
            blocks = {"attention": Attention, "feed_forward": FeedForward}
            self.networks = nn.ModuleDict({name: time_networks(block, config) for name, block in blocks.items()})
            self.shared = TimeNetwork(weights) if weights["kind"] == "time-shared-mlp" else None
        else:
            per_step = map(len, nodes) if weights.get("rows") == "node" else (1, 1)
            numbers = {"shared": (1, 1), "knots": (weights.get("knots"),) * 2}.get(
                weights["kind"], [config.steps * rows for rows in per_step]
            )
            self.attention = nn.ModuleList(Attention(config) for _ in range(numbers[0]))
            self.feed_forward = nn.ModuleList(FeedForward(config) for _ in range(numbers[1]))
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
        use_cache=None, output_hidden_states=None, output_attentions=None, exit_threshold=None, **kwargs,
    ) -> BaseModelOutputWithPast:  # fmt: skip
        """`exit_threshold`, for early exit: a token has settled when a step moves its prediction by less than this."""
        config, method, exits = self.config, self.config.method(), exit_threshold is not None
        x = self.embedding.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is None and (config.use_cache if use_cache is None else use_cache):
            past_key_values = None if self.training or exits else DynamicCache(config=config)
        if exits and past_key_values is not None:
            raise ValueError("exit_threshold needs use_cache=False: tokens that stop early leave no keys and values.")
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        if output_attentions and config._attn_implementation != "eager":
            raise ValueError("output_attentions needs attn_implementation='eager', which alone has them.")
        before = 0 if past_key_values is None else past_key_values.get_seq_length()
        length, context = before + x.shape[1], config.max_position_embeddings
        if config.learned_positions and length > context:
            raise ValueError(f"the text has {length} tokens, but the model knows positions of {context} only.")
        if position_ids is None:
            position_ids = self._positions(x, attention_mask, before)
        x, dtype = self.dropout(self.embedding(x, position_ids)), x.dtype
        given = {"attention_mask": attention_mask, "past_key_values": past_key_values, "position_ids": position_ids}
        seen = {
            "attend": ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention),
            "rotary": None if config.learned_positions else rotary_angles(config, position_ids, dtype),
            "attention_mask": create_causal_mask(config=config, inputs_embeds=x, **given),
            "past_key_values": past_key_values,
        }
        x = wide(x)  # the sum of many small steps: in bfloat16 its error would grow with their number
        if exits:
            method = EarlyExit(method, exit_threshold, config.horizon, lambda x: self.final_norm(x.to(dtype)))
        rows, grid, attentions, slots = self._rows(), config.grid(), [], count()
        carry, hidden_states = method.start(x), [x.to(dtype)]
        for step in range(config.steps):
            blocks = self._blocks_of(step, rows, slots, seen, dtype, attentions)
            carry = method.step(*blocks, carry, config.horizon * (grid[step + 1] - grid[step]))
            hidden_states.append(method.state(carry).to(dtype))
            if exits and method.finished(carry):
                break
        x = self.final_norm(method.state(carry).to(dtype))
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )

    def _blocks_of(self, step, rows, slots, seen, dtype, attentions):
        """Return A and M of a step as functions of the state, at each of the scheme's nodes (which may share a row)."""

        def at_nodes(rows, nodes):
            own = max(1, len(rows) // self.config.steps)  # one row may serve all nodes of a step, or all steps
            return [rows[(step * own + min(i, own - 1)) % len(rows)] for i in range(len(nodes))]

        def attend(x, row):
            y, looked = row(x.to(dtype), next(slots), **seen)
            attentions.append(looked)
            return y.to(x.dtype)

        attention, feed_forward = map(at_nodes, rows, self._nodes())
        first = lambda i, x: attention[min(i, len(attention) - 1)].norm(x) if self.config.nested_norm else x
        return (
            [lambda x, row=row: attend(x, row) for row in attention],
            [lambda x, i=i, row=row: row(first(i, x.to(dtype))).to(x.dtype) for i, row in enumerate(feed_forward)],
        )

    def _nodes(self):
        method = self.config.method()
        return method.attention_nodes, method.feed_forward_nodes

    def _rows(self):
        """Return the rows of A's weights and those of M's, in the order of depth."""
        if self.config.weights["kind"] in ("layer", "shared"):
            return self.attention, self.feed_forward
        sources = [p for name, p in self.named_parameters() if name.startswith(SOURCES)]
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in sources):
            return self._generated()
        # Tensors that were made in inference mode have no version.
        version = lambda p: (p.data_ptr(), p.dtype, None if p.is_inference() else p._version)
        state, steps = [self.training, *map(version, sources)], self.config.steps
        if self.kept.get(steps, (None,))[0] != state:
            # These are kept beyond this call, and autograd refuses tensors that were made in inference mode.
            with torch.inference_mode(False), torch.no_grad():
                self.kept[steps] = state, self._generated()
        return self.kept[steps][1]

    def _generated(self):
        """Generate the rows of A and M for the config's steps; gradients flow through them to the parameters."""
        config, found, dtype = self.config, [], self.embedding.tokens.weight.dtype
        for name, block, nodes in zip(
            ("attention", "feed_forward"), (Attention, FeedForward), self._nodes(), strict=True
        ):
            times = config.times(nodes)
            with torch.autocast(self.device.type, enabled=False):  # it would round time features to its own dtype
                if config.weights["kind"] == "knots":
                    edges = torch.tensor(config.grid(), dtype=torch.float64, device="cpu")
                    tensors = interpolate(getattr(self, name), times, edges, **config.weights)
                else:
                    tensors = generate(self.networks[name], self.shared, times)
            named = zip(*(stack.to(dtype).unbind() for stack in tensors.values()), strict=True)
            rows = [generated_row(block, config, dict(zip(tensors, row, strict=True))) for row in named]
            for row in rows:
                row.train(self.training)
                row.gradient_checkpointing = self.gradient_checkpointing
                row._gradient_checkpointing_func = getattr(self, "_gradient_checkpointing_func", None)
            found.append(rows)
        return found

    def _positions(self, x, attention_mask, before):
        """Return each token's position in its text; padding, wherever it is, is not counted."""
        if attention_mask is not None and attention_mask.dim() == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :]
        return torch.arange(before, before + x.shape[1], device=x.device)[None]


class DiffEqFormerForCausalLM(DiffEqFormerPreTrainedModel, GenerationMixin):
    """The model with a language-modelling head."""

    _tied_weights_keys = {"head.weight": "model.embedding.tokens.weight"}

    def __init__(self, config: DiffEqFormerConfig):
        super().__init__(config)
        self.model = DiffEqFormerModel(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.head

    def set_output_embeddings(self, value):
        self.head = value

    def generate(self, *args, steps: int | None = None, **kwargs):
        """Generate as any Transformers model does, at `steps` depth steps if given."""
        model = self if steps is None else self.with_steps(steps)
        return super(DiffEqFormerForCausalLM, model).generate(*args, **kwargs)

    @can_return_tuple
    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
        labels=None, use_cache=None, output_hidden_states=None, output_attentions=None, exit_threshold=None,
        logits_to_keep=0, **kwargs,
    ) -> CausalLMOutputWithPast:  # fmt: skip
        found = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache=use_cache,
            output_hidden_states=output_hidden_states, output_attentions=output_attentions,
            exit_threshold=exit_threshold, return_dict=True,
        )  # fmt: skip
        # As in Transformers, 0 keeps the logits of all positions: slice(-0, None).
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.head(found.last_hidden_state[:, kept])
        judged = {"logits": logits, "labels": labels, "vocab_size": self.config.vocab_size, **kwargs}
        loss = None if labels is None else self.loss_function(**judged)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )


class DiffEqFormerForSequenceClassification(GenericForSequenceClassification, DiffEqFormerPreTrainedModel):
    """The model with a classifier on the last token's state."""

    def __init__(self, config: DiffEqFormerConfig):
        # Not the generic class's `__init__`, which looks the model up by AutoModel.
        DiffEqFormerPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.model = DiffEqFormerModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()
