"""Building a model from a config, or from a user's own parts."""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Key

from diffeqformer.config import GradientConfig, ModelConfig, OwnConfig, SchemeConfig, validate_model
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import Embedding
from diffeqformer.nn.keys import require_key
from diffeqformer.nn.linear import Norm, NormShape, normal, ones, zeros
from diffeqformer.ode.field import Field
from diffeqformer.ode.grid import Grid
from diffeqformer.ode.schemes import SCHEMES, Reversible, Scheme
from diffeqformer.ode.weights import WeightSource
from diffeqformer.ode.weights.modulated import init_norm_changes
from diffeqformer.plain import shown
from diffeqformer.sharding import name_of_path

Build = Callable[[ModelConfig, Array], Transformer]
"""A function that makes a new model from a config and a key."""


def build(
    config: ModelConfig,
    key: Key[Array, ""],
    *,
    weights: WeightSource | None = None,
    field: Field | None = None,
    scheme: Scheme | None = None,
) -> Transformer:
    """Build a new model with random float32 weights.

    **Arguments:** `config`, with `vocabulary` set; `key`; `weights`, `field` and `scheme`, a user's own objects to
    replace those that the config's sections build. The model's config then says `own` there, and names their class.

    **Raises:** `BadInput` if a setting is invalid, if the config has no vocabulary size, or if it names a user's own
    part that is not given, or for what is not a key.
    """
    own = {"weights": weights, "field": field, "scheme": scheme}
    for (name, part), kind in zip(own.items(), (WeightSource, Field, Scheme), strict=True):
        if part is not None:
            require_part(name, part, kind)
    config, key = validate_model(config), require_key(key)
    if config.vocabulary is None:
        raise BadInput("model.vocabulary is not set; give the number of entries of the tokenizer.")
    tokens_key, positions_key, weights_key, head_key = jax.random.split(key, 4)
    gpt, width = config.like_gpt, config.width
    tied = gpt if config.tied is None else config.tied
    vectors = lambda key, number: config.init_std * normal(key, (number, width))
    own_field: Field = field or config.field.build(config)
    own_scheme: Scheme = scheme or config.scheme.build()
    if config.gradient == GradientConfig("reversible") and not isinstance(own_scheme, Reversible):
        raise BadInput(
            f"model.gradient is 'reversible', but the scheme {type(own_scheme).__name__} cannot run back: it has not "
            "the methods of Reversible."
        )
    grid = Grid.of_config(config)
    source = weights or config.weights.build(own_field.shapes(), grid, own_scheme.nodes, weights_key)
    if config.modulation:
        source = config.modulation.build(source, own_field.shapes(), grid.steps)
    halvings = config.final_norm_halvings
    sections = {name: own_section(part, getattr(config, name)) for name, part in own.items() if part is not None}
    return Transformer(
        embedding=Embedding(
            vectors(tokens_key, config.vocabulary),
            vectors(positions_key, config.context) if config.learned_positions else None,
        ),
        weights=source,
        field=own_field,
        scheme=own_scheme,
        final_norm=Norm(ones(width), zeros(width) if gpt else None),
        norm_changes=None if halvings is None else init_norm_changes(NormShape(width, gpt), halvings + 1),
        head=None if tied else vectors(head_key, config.vocabulary),
        config=dataclasses.replace(config, **sections),
    )


def require_part(name: str, part: Any, kind: type) -> None:
    """Check that a part is an object with the methods of the protocol `kind`, and tells programs apart.

    **Raises:** `BadInput` for any other object, naming what one of this kind has not, for a class, for weights that
    hold anything but arrays, and for a field or scheme that cannot be hashed: of the parts, weights alone are arrays,
    and trained.
    """
    if isinstance(part, type) or not isinstance(part, kind):
        asked = [member for member in dir(kind) if not member.startswith("_")]
        lacking = [member for member in asked if not hasattr(part, member)]
        part_of_it = not isinstance(part, type) and 0 < len(lacking) < len(asked)
        what = f"; it has no {', '.join(lacking)}." if part_of_it else "."
        raise BadInput(f"{name} is {shown(part)}, but must be an object with the methods of {kind.__name__}{what}")
    if kind is WeightSource:
        for path, leaf in jax.tree_util.tree_leaves_with_path(part):
            if not (eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)):
                where = name_of_path(path)
                raise BadInput(
                    f"weights is {type(part).__name__}, whose {where} is {shown(leaf)}, but all that it holds must be "
                    "arrays: mark the rest with eqx.field(static=True), or make a function a jax.tree_util.Partial."
                    if where
                    else f"weights is {shown(part)}, but must be a PyTree of arrays, such as an Equinox module."
                )
        return
    try:
        hash(part)
    except TypeError as error:
        raise BadInput(
            f"{name} is {type(part).__name__}, which cannot be hashed ({error}), but is a constant of compiled "
            "programs: hold tuples of numbers in place of arrays; what is to be trained belongs to the weights, which "
            "a field names in `shapes`."
        ) from None


def own_section(part: Any, before: Any) -> OwnConfig | SchemeConfig:
    """Return the config section of an object that replaces what the section `before` describes.

    The library's own schemes are named by their kind.
    """
    for kind, known in SCHEMES.items():
        # By identity: an equal object that the user made, such as `LieTrotter()`, counts as the user's own.
        if part is known:
            return SchemeConfig(kind)  # pyright: ignore[reportArgumentType]
    like = before.like if isinstance(before, OwnConfig) else before.kind
    # What `ModelConfig` itself reads from the field's section.
    of_field = ("kv_heads", "head_width", "final_norm_epsilon")
    kept: dict[str, Any] = {name: getattr(before, name, None) for name in of_field}
    return OwnConfig(f"{type(part).__module__}.{type(part).__qualname__}", like, **kept)


def own_parts(model: Transformer) -> dict[str, str]:
    """Return the names of the user's own objects in a model, by part, such as `{"weights": "mine.Polynomial"}`."""
    sections = {name: getattr(model.config, name) for name in ("weights", "field", "scheme")}
    return {name: section.name for name, section in sections.items() if isinstance(section, OwnConfig)}


def settings_of_build(config: ModelConfig, model: Transformer) -> dict[str, str]:
    """Return the settings that a user's `build` gave a model in place of those of `config`: `{"scheme": "heun"}`.

    Left out are those that a trained model computes the same without.
    """
    names = {field.name for field in dataclasses.fields(config)} - {"init_std", "dropout", "gradient"}
    settings = {name: getattr(model.config, name) for name in sorted(names)}
    return {
        name: str(made)
        for name, made in settings.items()
        if made != getattr(config, name) and not isinstance(made, OwnConfig)
    }


def require_no_own(config: ModelConfig) -> None:
    """Check that a config names no part of the user's own, before anything else is done.

    **Raises:** `BadInput`, as `refuse_own` does, if it names one.
    """
    for section in (config.weights, config.field, config.scheme):
        if isinstance(section, OwnConfig):
            refuse_own(section)


def refuse_own(section: OwnConfig, *_: Any) -> NoReturn:
    """Refuse a user's own part, which a config file cannot rebuild.

    **Raises:** `BadInput`, always.
    """
    raise BadInput(
        f"this model has a part of your own, {section.name}, which a config cannot make: give `train` and `load_run` a "
        "`build` that passes it."
    )


def abstract(config: ModelConfig, build: Build = build) -> Transformer:
    """Return the model as shapes and dtypes without values, for counting and as the target of a restore.

    **Raises:** `BadInput` as `build`.
    """
    return eqx.filter_eval_shape(made_by, build, config, jax.random.key(0))


def made_by(build: Build, config: ModelConfig, key: Key[Array, ""]) -> Transformer:
    """Return the model that a user's own `build` makes.

    **Raises:** `BadInput` if it returns anything else, such as nothing.
    """
    model = build(config, key)
    if not isinstance(model, Transformer):
        raise BadInput(f"`build` returned {shown(model)}, but must return a model, as `diffeqformer.build` does.")
    return model
