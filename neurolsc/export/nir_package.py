"""The optional package nir: imported when it is needed, named when it is missing."""

from types import ModuleType

__all__ = ["load_nir"]


def load_nir() -> ModuleType:
    """The module ``nir``.

    Raises:
        ImportError: if it is not installed; the message names the extra that brings it.
    """
    try:
        import nir
    except ImportError as error:
        raise ImportError("export to and from NIR needs the package nir: pip install 'neurolsc[nir]'.") from error
    return nir
