import inspect
import subprocess
import sys

import pytest

import diffeqformer


def test_every_public_name_is_there_and_listed_alike_for_people_and_type_checkers():
    names = sorted(diffeqformer.__all__)
    assert names == dir(diffeqformer) == sorted(diffeqformer._HOMES) and len({*names}) == len(names) > 80


@pytest.mark.parametrize("name", diffeqformer.__all__)
def test_every_public_name_has_a_docstring_of_its_own(name):
    thing = getattr(diffeqformer, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert thing.__doc__ and not thing.__doc__.startswith(f"{name}(")


def test_importing_the_package_loads_neither_jax_nor_torch():
    code = "import sys, diffeqformer; print({'jax', 'torch', 'transformers', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'transformer_'"):
        diffeqformer.transformer_  # noqa: B018
