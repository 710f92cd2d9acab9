"""The Hugging Face hub: repositories by name, fetched into the hub's own cache, and folders that are sent there."""

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
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?"
_NAME = re.compile(rf"(?:hf://)?((?:{_PART}/)?{_PART})(?:@([\w./-]{{1,200}}))?", re.ASCII)
WHY = {
    "GatedRepoError": "it is gated; accept its terms on its page, and sign in with `hf auth login`",
    "RepositoryNotFoundError": "there is no such repository, or it is private; `hf auth login` signs in",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "it is not in the cache, and the hub cannot be reached",
    "IncompleteSnapshotError": "the cache has only some of its files, and the hub cannot be reached",
    "OfflineModeIsEnabled": "it is not in the cache, and HF_HUB_OFFLINE forbids to ask",
}
"""What the hub's errors mean, by the names of their classes."""


class Repository(NamedTuple):
    """A repository on the hub, by name and revision."""

    name: str
    revision: str | None = None
    """A branch, a tag or a commit; the main branch if not given."""

    @classmethod
    def named(cls, spec: str | Path) -> "Repository | None":
        """What `[hf://][ORGANISATION/]NAME[@REVISION]` names; `None` for anything else, or if such a path is here."""
        found = _NAME.fullmatch(str(spec))
        return cls(found[1], found[2]) if found and not path_of(spec).exists() else None


def fetch(repository: Repository, files: Sequence[str]) -> Path:
    """The folder of a repository in the hub's cache; what is missing there is fetched.

    **Arguments:** `files`, names or patterns of those that are wanted.

    **Raises:** `BadInput` if the repository is not there, or not for us, or cannot be reached and is not in the cache.
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
    """Where a folder is going to be sent: a model repository on the hub.

    **Arguments:** `name`, `[ORGANISATION/]NAME`; `private`, whether others may not see it, if it is new.

    **Raises:** `BadInput` if it is no such name, nobody is signed in, or the hub cannot be reached.
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
            self.api.whoami()
        except Exception as error:  # the network has exceptions of its own
            raise BadInput(f"--push is {name!r}, but the Hugging Face hub does not answer: {_why(error)}.") from error

    def send(self, folder: Path) -> str:
        """Send all files of a folder, as one commit; returns its address.

        **Raises:** `RunFailed` if they do not arrive; the folder is whole then.
        """
        try:
            self.name = self.api.create_repo(self.name, private=self.private, exist_ok=True).repo_id
            return str(self.api.upload_folder(repo_id=self.name, folder_path=folder))
        except Exception as error:
            again = f"the folder is whole: `hf upload {self.name} {folder}` sends it again"
            raise RunFailed(f"{str(folder)!r} could not be sent to {self.name!r} ({_why(error)}); {again}.") from error


def _why(error: Exception) -> str:
    # The class before its bases: to the hub, a gated repository is a kind of one that is not found.
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return next((WHY[kind] for kind in kinds if kind in WHY), None) or reason(error)
