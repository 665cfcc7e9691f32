"""Files of the Hugging Face hub and the choice among them, over plain HTTP with huggingface_hub's session.

Not by its `hf_hub_download(local_dir=...)`, because that (2.4) deletes its part on every failure and on Ctrl-C, fails
on connections that end within 10 MiB, and puts a file in place without comparing its checksum.
"""

import os
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from car_client.errors import CardError
from car_protocol.hub import HubFile, hub_file

# Statuses that may be different a moment later.
_PASSING = (408, 429, 500, 502, 503, 504)
_HINTS = {
    401: ": check HF_TOKEN",
    429: ", too many requests: wait some minutes, or set HF_TOKEN to a token of your account",
    **dict.fromkeys((500, 502, 503, 504), ": try again later"),
}
# Messages for exceptions of huggingface_hub, subclasses first.
_MEANINGS = {
    "GatedRepoError": "{repo} is gated: accept its terms at {hub}/{repo}, and set HF_TOKEN to a token that may read it",
    "DisabledRepoError": "{repo} is disabled on the hub",
    "RepositoryNotFoundError": "there is no repository {repo}, or it is private and HF_TOKEN may not read it",
    "RevisionNotFoundError": "{repo} has no revision {revision}",
    "EntryNotFoundError": "{repo} has no file {path} in revision {revision}",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set: nothing can be downloaded until it is unset",
}


class PullError(CardError):
    """The file cannot be downloaded."""


class Cut(Exception):
    """The connection ended early or the hub is busy; the bytes before are good."""


class RemoteFile(NamedTuple):
    """A file at one commit: its size in bytes, and its SHA-256 or, for a small one, its git hash."""

    file: HubFile
    url: str
    commit: str
    size: int
    etag: str


class Piece(NamedTuple):
    """Bytes at an offset of the file."""

    start: int
    data: bytes


class Hub:
    """The hub that HF_ENDPOINT names, with HF_TOKEN; raises PullError if huggingface_hub is not installed."""

    def __init__(self) -> None:
        self._library = _library()

    def look_up(self, file: HubFile, revision: str | None) -> RemoteFile:
        """Return the size and the checksum of a file; raises PullError."""
        library = self._library
        try:
            url = library.hf_hub_url(file.repo, file.path, revision=revision)
            found = library.get_hf_file_metadata(url)
        except (library.errors.HTTPError, OSError, ValueError) as error:
            raise self._explained(error, file, revision) from error
        if found.commit_hash is None or found.size is None or found.etag is None:
            raise PullError(f"{self._address} does not answer like a hub: check HF_ENDPOINT")
        pinned = library.hf_hub_url(file.repo, file.path, revision=found.commit_hash)
        return RemoteFile(file, pinned, found.commit_hash, found.size, found.etag)

    def files(self, repo: str, revision: str | None) -> list[str]:
        """Return the paths of all files of a repository; raises PullError."""
        library = self._library
        try:
            return list(library.HfApi().list_repo_files(repo, revision=revision))
        except (library.errors.HTTPError, OSError, ValueError) as error:
            raise self._explained(error, HubFile(repo, ""), revision) from error

    def pieces(self, remote: RemoteFile, start: int) -> Iterator[Piece]:
        """Yield a file from an offset, or from 0 if the hub ignores ranges; raises Cut and PullError."""
        library = self._library
        # Not by the chunked protocol of Xet, which keeps a second copy and starts a file again after a cut.
        headers = library.utils.build_hf_headers() | {"Range": f"bytes={start}-", "Accept-Encoding": "identity"}
        timeout = library.constants.HF_HUB_DOWNLOAD_TIMEOUT
        try:
            session = library.get_session()
            with session.stream("GET", remote.url, headers=headers, timeout=timeout, follow_redirects=True) as response:
                library.hf_raise_for_status(response)
                at = start if response.status_code == 206 else 0
                for data in response.iter_bytes():
                    yield Piece(at, data)
                    at += len(data)
        except library.errors.HfHubHTTPError as error:
            if error.response.status_code in _PASSING:
                raise Cut(_status(error)) from error
            raise self._explained(error, remote.file, remote.commit) from error
        except library.errors.HTTPError as error:
            raise Cut(_words(error)) from error

    @property
    def _address(self) -> str:
        return str(self._library.constants.ENDPOINT)

    def _explained(self, error: Exception, file: HubFile, revision: str | None) -> PullError:
        facts = {"repo": file.repo, "path": file.path, "revision": revision or "main", "hub": self._address}
        for name, meaning in _MEANINGS.items():
            if isinstance(error, getattr(self._library.errors, name)):
                return PullError(meaning.format(**facts))
        if isinstance(error, self._library.errors.HfHubHTTPError):
            return PullError(_status(error))
        if isinstance(error, ValueError):
            return PullError(f"huggingface_hub refuses this: {_words(error)}")
        return PullError(
            f"cannot reach {self._address}: {_words(error)}; check the network, HF_ENDPOINT and HTTPS_PROXY"
        )


def _library() -> ModuleType:
    """Return huggingface_hub, with its own messages and its telemetry switched off."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise PullError("downloads need huggingface_hub: pip install 'card-daemon[hub]'") from error
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.utils

    return huggingface_hub


def _status(error: Any) -> str:
    code = error.response.status_code
    return f"the hub answered with HTTP status {code}{_HINTS.get(code, '')}"


def _words(error: Exception) -> str:
    """Return the first line of an exception's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# In the order of preference if no quantization was named: 4 bits with little loss first, then what is near.
PREFERRED = (
    *("Q4_K_M", "Q4_K_S", "Q4_K_XL", "Q4_K", "MXFP4", "IQ4_NL", "IQ4_XS", "Q4_0", "Q4_1"),
    *("Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "IQ3_M", "Q2_K"),
    *("F16", "BF16", "F32"),
)
_PROJECTORS = ("F16", "Q8_0", "BF16", "F32")
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
# Beside models lie their projectors, adapters, importance matrices and heads that guess.
_OTHER = re.compile(r"(?:^|[-_./])(?:mmproj|imatrix|lora|mtp|vocab)(?:[-_.]|$)", re.IGNORECASE)
_PROJECTOR = re.compile(r"(?:^|[-_./])mmproj(?:[-_.]|$)", re.IGNORECASE)
_FORM = re.compile(r"(?:hf:)?([^/:]+/[^/:]+)(?::([A-Za-z0-9_.-]+))?")


class Repository(NamedTuple):
    """A repository of the hub, with the quantization that was named."""

    repo: str
    quantization: str | None


class FileChoice(NamedTuple):
    """The first file of a model, and of its projector if it has one."""

    model: HubFile
    projector: HubFile | None


def repository(text: str) -> Repository | None:
    """Return what `OWNER/REPO[:QUANT]` names; None for anything else."""
    found = _FORM.fullmatch(text)
    return Repository(found[1], found[2]) if found else None


def choose(wanted: Repository, paths: Sequence[str]) -> FileChoice:
    """Return the files to download; raises PullError with the quantizations that there are."""
    files = [path for path in paths if path.lower().endswith(".gguf") and not _LATER_PART.search(path)]
    models = [path for path in files if not _OTHER.search(path)]
    if not models:
        raise PullError(f"{wanted.repo} has no GGUF file: look for one whose name ends with -GGUF")
    model = _model(wanted, models)
    projectors = _ranked([path for path in files if _PROJECTOR.search(path)], _PROJECTORS)
    return FileChoice(_hub(wanted.repo, model), _hub(wanted.repo, projectors[0]) if projectors else None)


def _model(wanted: Repository, models: Sequence[str]) -> str:
    if wanted.quantization is None:
        return _ranked(models, PREFERRED)[0]
    matching = [path for path in models if _has(path, wanted.quantization)]
    if not matching:
        there = sorted({name for name in PREFERRED for path in models if _has(path, name)})
        names = ", ".join(there) or ", ".join(models[:10])
        raise PullError(f"{wanted.repo} has no file in {wanted.quantization}; there are: {names}")
    return min(matching, key=lambda path: (len(path), path))


def _ranked(paths: Sequence[str], preferred: Sequence[str]) -> list[str]:
    """Return paths in the order of preference, short names first among equals."""

    def rank(path: str) -> tuple[int, int, str]:
        places = (place for place, name in enumerate(preferred) if _has(path, name))
        return next(places, len(preferred)), len(path), path

    return sorted(paths, key=rank)


def _has(path: str, quantization: str) -> bool:
    """Return whether a path's file or folder names a quantization."""
    return re.search(rf"(?:^|[-_./]){re.escape(quantization)}(?:[-./]|$)", path, re.IGNORECASE) is not None


def _hub(repo: str, path: str) -> HubFile:
    try:
        return hub_file(f"{repo}/{path}")
    except ValueError as error:
        raise PullError(f"{repo}: {error}") from error
