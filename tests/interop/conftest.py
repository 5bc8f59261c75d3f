"""snnTorch keeps every layer ever made in one list, which its own utilities go through: empty
between tests."""

from collections.abc import Iterator

import pytest
import snntorch


@pytest.fixture(autouse=True)
def no_leftover_layers() -> Iterator[None]:
    yield
    snntorch.SpikingNeuron.instances.clear()
