"""Choice of the files of a repository that make up a model: a quantization, its first part, and the projector."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from car_client.carctl.hub.remote import PullError
from car_protocol.hub import HubFile, hub_file

# In the order of preference where no quantization was named: 4 bits with little loss first, then what is near.
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


class Choice(NamedTuple):
    """The first file of a model, and of its projector where it has one."""

    model: HubFile
    projector: HubFile | None


def repository(text: str) -> Repository | None:
    """Return what `OWNER/REPO[:QUANT]` names; None for anything else."""
    found = _FORM.fullmatch(text)
    return Repository(found[1], found[2]) if found else None


def choose(wanted: Repository, paths: Sequence[str]) -> Choice:
    """Return the files to download; raises PullError with the quantizations that there are."""
    files = [path for path in paths if path.lower().endswith(".gguf") and not _LATER_PART.search(path)]
    models = [path for path in files if not _OTHER.search(path)]
    if not models:
        raise PullError(f"{wanted.repo} has no GGUF file: look for one whose name ends with -GGUF")
    model = _model(wanted, models)
    projectors = _ranked([path for path in files if _PROJECTOR.search(path)], _PROJECTORS)
    return Choice(_hub(wanted.repo, model), _hub(wanted.repo, projectors[0]) if projectors else None)


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
