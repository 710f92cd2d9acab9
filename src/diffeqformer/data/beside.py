"""Files that Transformers writes next to a tokenizer: settings, names of special tokens, the chat template."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import is_utf8
from diffeqformer.store.regular import read_small

SETTINGS = "tokenizer_config.json"
TEMPLATE, SPECIAL = "chat_template.jinja", "special_tokens_map.json"
"""Transformers' file names: how the turns of a chat become one text, and the names of special tokens."""
TOKENIZER_BYTES = 256 << 20
"""Largest size of a tokenizer's file."""


def beside_tokenizer(folder: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the files, by name, that go with a tokenizer from a folder of Transformers or a run into a new run.

    These are the chat template (a file there or one of the tokenizer's settings; the default one of several) and the
    names of the special tokens, which templates use. What is not text, or not in the vocabulary, is left out.

    **Raises:** `BadInput` if a file cannot be read.
    """
    found = special_tokens(folder)
    special = {role: name for role, name in found.items() if tokenizer.token_to_id(name) is not None}
    named = {SPECIAL: json.dumps(special, indent=2, ensure_ascii=False) + "\n"} if special else {}
    return chat_template(folder) | named


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
