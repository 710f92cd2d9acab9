"""The Hugging Face hub: fetching repositories by name into the hub's own cache, and uploading folders."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from diffeqformer.errors import BadInput, RunFailed, reason
from diffeqformer.plain import shown
from diffeqformer.store.paths import path_of

TOKENIZER_FILES = (
    "tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "added_tokens.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
# As `huggingface_hub` takes names: at most 96 characters, with neither `-` nor `.` at either end.
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?"
_NAME = re.compile(rf"(?:hf://)?((?:{_PART}/)?{_PART})(?:@([\w./-]{{1,200}}))?", re.ASCII)
STALE = ("model*.safetensors", "model.safetensors.index.json", "chat_template.jinja")
"""Files of an earlier upload that would be read instead of, or along with, those of a new one that lacks them."""
WHY = {
    "GatedRepoError": "it is gated; accept its terms on its page, and sign in with `hf auth login`",
    "RepositoryNotFoundError": "there is no such repository, or it is private; `hf auth login` signs in",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "it is not in the cache, and the hub cannot be reached",
    "IncompleteSnapshotError": "the cache has only some of its files, and the hub cannot be reached",
    "OfflineModeIsEnabled": "it is not in the cache, and HF_HUB_OFFLINE forbids to ask",
}
"""Explanations of the hub's errors, by class name."""


class Repository(NamedTuple):
    """A repository on the hub, by name and revision."""

    name: str
    revision: str | None = None
    """A branch, a tag or a commit; the main branch if not given."""

    @classmethod
    def named(cls, spec: str | Path) -> "Repository | None":
        """Parse `[hf://][ORGANISATION/]NAME[@REVISION]`; `None` for anything else, or if `spec` is an existing path."""
        found = _NAME.fullmatch(str(spec))
        return cls(found[1], found[2]) if found and not path_of(spec).exists() else None


def fetch(repository: Repository, files: Sequence[str]) -> Path:
    """Return the folder of a repository in the hub's cache, after fetching the files that it lacks.

    **Arguments:** `files`, names or patterns of the files that are wanted.

    **Raises:** `BadInput` if the repository does not exist, access to it is refused, or it can neither be reached nor
    found in the cache.
    """
    import huggingface_hub

    try:
        found = huggingface_hub.snapshot_download(
            repository.name, revision=repository.revision, allow_patterns=list(files)
        )
    except Exception as error:  # the network has exceptions of its own
        raise BadInput(
            f"{repository.name!r} is no file or folder here and cannot be fetched from the Hugging Face hub: "
            f"{_why(error)}."
        ) from error
    return Path(str(found))


class Upload:
    """The destination of an upload: a model repository on the hub.

    **Arguments:** `name`, `[ORGANISATION/]NAME`, the user's if no organisation is given; `private`, whether a new
    repository is private.

    **Raises:** `BadInput` if `name` has another form, nobody is signed in, or the hub cannot be reached.
    """

    def __init__(self, name: str, private: bool = False):
        import huggingface_hub

        found = _NAME.fullmatch(name)
        if not found or found[2]:
            raise BadInput(f"--push is {shown(name)}, but must be a repository's name on the hub, ORGANISATION/NAME.")
        if huggingface_hub.get_token() is None:
            raise BadInput(
                f"--push is {name!r}, but nobody is signed in to the Hugging Face hub; `hf auth login` does."
            )
        self.name, self.private, self.api = found[1], private, huggingface_hub.HfApi()
        try:
            user = self.api.whoami()["name"]
        except Exception as error:  # the network has exceptions of its own
            raise BadInput(f"--push is {name!r}, but the Hugging Face hub does not answer: {_why(error)}.") from error
        if "/" not in self.name:
            self.name = f"{user}/{self.name}"

    def send(self, folder: Path) -> str:
        """Upload all files of a folder, in place of those of an earlier upload; return the address.

        **Raises:** `RunFailed` if the upload fails; the folder itself is still whole.
        """
        try:
            self.api.create_repo(self.name, private=self.private, exist_ok=True)
            found = self.api.upload_folder(repo_id=self.name, folder_path=folder, delete_patterns=list(STALE))
            return str(found)
        except Exception as error:
            again = f"the folder is whole: `hf upload {self.name} {folder}` sends it again"
            raise RunFailed(f"{str(folder)!r} could not be sent to {self.name!r} ({_why(error)}); {again}.") from error


def _why(error: Exception) -> str:
    # The class before its bases: the hub's error for a gated repository is a subclass of that for a missing one.
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return next((WHY[kind] for kind in kinds if kind in WHY), None) or reason(error)
