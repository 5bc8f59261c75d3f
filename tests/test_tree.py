import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from neurolsc.files import read_tree, write_tree
from neurolsc.untrusted.tensors import sealed
from tests.bits import assert_same_tree

TREE = {
    "plain": [None, True, False, 0, -3, 2**70, "", "ü\n\"'", 0.1, 1 / 3, -0.0, 5e-324, 1.7e308],
    "special": (math.inf, -math.inf, math.nan),
    "empty": [{}, [], ()],
    "tensor": "not a tensor",
    "look-alikes": {"tensor": "0", "list": [1], "dict": [[1, 2]]},
    (0, 1): {"slow": torch.randn(3, 2)},
    1: {None: torch.tensor(2.5), True: torch.empty(0, 3), 0.5: ((1, (2,)), "x")},
    "dtypes": [
        torch.tensor([0.1, math.nan, -0.0, math.inf], dtype=torch.float64),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5, -2.0], dtype=torch.float16),
        torch.tensor([True, False]),
        torch.tensor([2**63 - 1]),
        torch.tensor([255], dtype=torch.uint8),
        torch.tensor([1 + 2j]),
    ],
    "strided": torch.arange(6.0).view(2, 3).T,
}


def test_a_tree_comes_back_with_all_its_bits_types_keys_and_order(tmp_path: Path):
    write_tree(tmp_path / "t", TREE)
    assert_same_tree(read_tree(tmp_path / "t"), TREE)


@pytest.mark.parametrize("tree", [None, 3, "x", [], torch.ones(2), {}])
def test_a_tree_may_be_a_single_leaf_or_empty(tree: Any, tmp_path: Path):
    write_tree(tmp_path / "t", tree)
    assert_same_tree(read_tree(tmp_path / "t"), tree)


def test_tensors_that_share_memory_come_back_apart(tmp_path: Path):
    a = torch.zeros(4, requires_grad=True)
    write_tree(tmp_path / "t", OrderedDict(a=a, part=a[1:3]))
    tree = read_tree(tmp_path / "t")
    assert type(tree) is dict
    tree["a"].fill_(1)
    assert tree["part"].tolist() == [0, 0]
    assert not tree["a"].requires_grad


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, {2}]}, r"tree\['a'\]\[1\] cannot be stored.*got set"),
        ({"f": print}, r"tree\['f'\].*got builtin_function_or_method"),
        ({torch.zeros(1): 1}, "a key of tree.*tensor"),
        ({"a": torch.zeros(2).to_sparse()}, r"tree\['a'\].*sparse"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, r"tree\['a'\].*complex128"),
    ],
)
def test_what_a_tree_cannot_hold_is_refused_with_its_place(tree: Any, message: str, tmp_path: Path):
    with pytest.raises(TypeError, match=message):
        write_tree(tmp_path / "t", tree)
    assert list(tmp_path.iterdir()) == []


def test_a_tree_whose_structure_does_not_fit_its_tensors_is_damaged(tmp_path: Path):
    header = {"neurolsc": "tree", "format": "2", "version": "0", "content": ""}
    for content in ('{"tensor": "7"}', '{"dict": [1]}', '{"code": 1}', "[1]"):
        header["content"] = content
        (tmp_path / "t").write_bytes(b"".join(sealed({"0": torch.zeros(1)}, header)))
        with pytest.raises(ValueError, match="t: damaged: its structure"):
            read_tree(tmp_path / "t")
