"""Private names of PyTorch stand in one file, and in core, which imports no framework, in one more."""

import ast
from pathlib import Path

import pytest

import sharpmax

PACKAGE = Path(sharpmax.__file__).parent
HERE = {"torch/torch_internals.py", "core/arrays.py"}
IN_CORE = {"_are_functorch_transforms_active", "_current_level", "_higher_order_ops"}
OF_TENSORS_AND_MODULES = {"_version", "_compiled_call_impl"}


def private_names(source):
    """Return the private names of PyTorch that a module reads, imports or writes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            whole = ast.unparse(node)
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if node.attr in OF_TENSORS_AND_MODULES or (private and whole.startswith(("torch.", "forward_ad."))):
                found.append(whole)
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("torch.") and "._" in name.name]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [f"{node.module}.{name.name}" for name in node.names]
            found += [name for name in names if "._" in name]
    return found


def test_private_names_of_pytorch_stand_in_one_file():
    files = {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    assert {name for name, source in files.items() if private_names(source)} == HERE
    in_core = private_names(files["core/arrays.py"])
    assert {name.rpartition(".")[2] for name in in_core} - {"_C"} == IN_CORE


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch import _dynamo",
        "from torch._dynamo import OptimizedModule",
        "torch._C._current_graph_task_id()",
        "torch.ops.aten._flash_attention_forward(q)",
        "forward_ad._current_level",
        "x._version",
        "block._compiled_call_impl = None",
    ],
)
def test_the_check_can_fail(source):
    assert private_names(source)
    assert not private_names("import torch\ntorch.compiler.reset()\ntorch.Tensor.__len__\nself._kept")
