"""The two files of SHD: found in a folder, or downloaded by tonic."""

import tempfile
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import Literal

Part = Literal["train", "test"]
SOURCE = "https://zenkelab.org/datasets"


def fetch_shd(root: str | Path, part: Part) -> Path:
    """Return the path of one of the two files in a folder, after downloading it if it is missing.

    A file that is there is used without any network: ``shd_train.h5`` in the folder or, as tonic
    leaves it, in its folder ``SHD``; or ``train.h5``, of a set of one's own in the same layout. A
    downloaded one appears complete and verified, or not at all.

    Args:
        root: the folder; made if need be.
        part: which file.

    Returns:
        Its path.

    Raises:
        ImportError: if the file is missing and tonic, which downloads and verifies it, is not
            installed.
        ConnectionError: if it could not be downloaded.
    """
    root, name = Path(root), f"shd_{part}.h5"
    for path in (root / name, root / "SHD" / name, root / f"{part}.h5"):
        if path.exists():
            return path
    return _download(root, part, name)


def _download(root: Path, part: Part, name: str) -> Path:
    by_hand = f"Put {name}, from {SOURCE}/{name}.zip, into {root} by hand, or use SHD.embedded(split)."
    try:
        from tonic.datasets import SHD
    except ImportError as error:
        raise ImportError(
            f"{root} has no {name}, and downloading it takes tonic: pip install 'tonic>=1.6'.\n{by_hand}"
        ) from error
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as temporary:
        try:
            SHD(temporary, train=part == "train")
        except (OSError, RuntimeError, HTTPException, zipfile.BadZipFile) as error:
            raise ConnectionError(f"{name} could not be downloaded from {SOURCE}: {error}.\n{by_hand}") from error
        return (Path(temporary) / "SHD" / name).replace(root / name)
