"""Without the other libraries the package works, and says what to install where one is needed."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("name", ["snntorch", "norse", "lightning", "neurobench"])
def test_i2_a_missing_package_is_named_with_what_to_install(name, monkeypatch):
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"neurolsc.interop.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install '{name}>=\d\.\d'"):
        importlib.import_module(f"neurolsc.interop.{name}")
