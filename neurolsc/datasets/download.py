"""A file of a data set, from the first address that gives the right one."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


def downloaded(
    root: Path, name: str, addresses: Sequence[str], verify: Callable[[Path], object], *, called: str, otherwise: str
) -> Path:
    """Download a file into a folder, complete and verified, or not at all.

    Args:
        root: the folder; made if need be.
        name: of the file in it.
        addresses: where it may be had, tried in this order.
        verify: refuses a file that is not the right one, by ``ValueError``.
        called: what the error calls it.
        otherwise: what to do without a download, the end of the error.

    Returns:
        Its path.

    Raises:
        ConnectionError: if no address gave the right file; the message says why for each.
    """
    import pooch  # slow to import, and only a download needs it

    root.mkdir(parents=True, exist_ok=True)
    failures = []
    for address in addresses:
        base, _, there = address.rpartition("/")
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as temporary:
            source = pooch.create(temporary, base_url=f"{base}/", registry={there: None})
            try:
                path = Path(source.fetch(there))
                verify(path)
            except (OSError, ValueError) as error:
                failures.append(f"  {address}: {error}")
                continue
            return path.replace(root / name)
    raise ConnectionError("\n".join([f"{called} could not be downloaded.", *failures, otherwise]))


def first_there(root: Path, names: Sequence[str]) -> Path | None:
    """The first of some files that is in a folder."""
    return next((path for name in names if (path := root / name).exists()), None)
