"""Files that Transformers writes next to a tokenizer: settings, names of special tokens, the chat template."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from diffeqformer.data.tokenizer import ends_of_generation
from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import is_utf8
from diffeqformer.store.regular import read_small

SETTINGS = "tokenizer_config.json"
TEMPLATE, SPECIAL = "chat_template.jinja", "special_tokens_map.json"
"""Transformers' file names: how the turns of a chat become one text, and the names of special tokens."""
GENERATION, MODEL = "generation_config.json", "config.json"
"""Files of a model that may say which tokens end a text; Transformers reads the second only without the first."""
STOPS = "stop_tokens"
"""Our own entry in `SPECIAL`: the names of further tokens at which the model's own settings end a text."""
TOKENIZER_BYTES = 256 << 20
"""Largest size of a tokenizer's file."""


def beside_tokenizer(folder: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the files, by name, that go with a tokenizer from a folder of Transformers or a run into a new run.

    These are the chat template (a file there or one of the tokenizer's settings; the default one of several) and the
    names of the special tokens, which templates use. What is not text, or not in the vocabulary, is left out. If no
    token is declared to end a text, it is the first at which the model's own settings end it, if no other is known to;
    the others of these settings follow as `STOPS`.

    **Raises:** `BadInput` if a file cannot be read.
    """
    found = special_tokens(folder)
    special: dict[str, Any] = {role: name for role, name in found.items() if tokenizer.token_to_id(name) is not None}
    ends = [name for name in _ends_of_model(folder, tokenizer) if name != special.get("eos_token")]
    if ends and "eos_token" not in special:
        special["eos_token"] = ends.pop(0)
    special |= {STOPS: ends} if ends else {}
    named = {SPECIAL: json.dumps(special, indent=2, ensure_ascii=False) + "\n"} if special else {}
    return chat_template(folder) | named


def _ends_of_model(folder: Path, tokenizer: Tokenizer) -> list[str]:
    """Return the names of the special tokens that a model's own settings end a text at, not known by their names."""
    ids = declared_settings(folder, GENERATION if (folder / GENERATION).is_file() else MODEL).get("eos_token_id")
    added, known = tokenizer.get_added_tokens_decoder(), ends_of_generation(tokenizer)
    numbers = [one for one in (ids if isinstance(ids, list) else [ids]) if type(one) is int and one not in known]
    numbers = dict.fromkeys((*numbers, *special_token(folder, tokenizer, "eos_token")))
    return [added[one].content for one in numbers if one in added and added[one].special]


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the names of the tokens that begin, end and pad a text, and of the unknown token, as far as declared."""
    found: dict[str, str] = {}
    # Like Transformers, which reads the map of older versions only if the settings do not declare added tokens.
    for file in (SETTINGS,) if "added_tokens_decoder" in declared_settings(folder) else (SETTINGS, SPECIAL):
        for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = declared_settings(folder, file).get(role)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and is_utf8(token):
                found[role] = token
    return found


def special_token(folder: Path, tokenizer: Tokenizer, role: str) -> list[int]:
    """Return the token that is declared for a role such as `eos_token`, in a list; empty if the tokenizer has none.

    In a run, that of `eos_token` is followed by `STOPS`.
    """
    more = declared_settings(folder, SPECIAL).get(STOPS) if role == "eos_token" else None
    names = [special_tokens(folder).get(role), *(more if isinstance(more, list) else ())]
    numbers = (tokenizer.token_to_id(name) for name in names if isinstance(name, str) and is_utf8(name))
    return [number for number in numbers if number is not None]


def more_special_tokens(folder: Path) -> list[str]:
    """Return the names of special tokens without a role in `special_tokens`, such as those that begin a chat turn."""
    found: list[str] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = declared_settings(folder).get(key)
        names = listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else ()
        contents = (one.get("content") if isinstance(one, dict) else one for one in names)
        found += [name for name in contents if isinstance(name, str) and is_utf8(name)]
    return found


def chat_template(folder: Path) -> dict[str, str]:
    """Return the chat template next to a tokenizer, as a file by its name; empty if there is none.

    **Raises:** `BadInput` if it cannot be read.
    """
    try:
        found: Any = read_small(folder / TEMPLATE, TOKENIZER_BYTES).decode()
    except FileNotFoundError:
        found = declared_settings(folder).get("chat_template")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"file {str(folder / TEMPLATE)!r} cannot be read: {reason(error)}.") from None
    if isinstance(found, list):
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = named[0].get("template") if named else None
    return {TEMPLATE: found} if isinstance(found, str) and is_utf8(found) else {}


def declared_settings(folder: Path, file: str = SETTINGS) -> dict[str, Any]:
    """Return the settings in a file next to a vocabulary; empty if it does not exist.

    **Raises:** `BadInput` if it cannot be read, since what it declares would be lost.
    """
    try:
        found = json.loads(read_small(folder / file, TOKENIZER_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"file {str(folder / file)!r} cannot be read as JSON: {reason(error)}; mend it, or take it away if nothing "
            "that it declares is needed."
        ) from None
    return found if isinstance(found, dict) else {}
