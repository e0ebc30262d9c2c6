"""TabPFN v1 with the authors' weights: fetched once, converted to safetensors, and applied to a table.

The checkpoint is a pickle. It is read with `weights_only`, which builds tensors, numbers, strings and plain containers
and refuses everything else, after the package's sha256 was found right.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from sharpmax.builtin.tabpfn import CHECKPOINT, LICENSE, METADATA, TABPFN, folder
from sharpmax.core.policies import Policy
from sharpmax.extras import extra
from sharpmax.files import atomic
from sharpmax.files.sdists import extracted
from sharpmax.files.wheels import Downloaded
from sharpmax.models.tables.normalised import normalised
from sharpmax.models.tables.row_transformer import PLAIN, Observer, RowTransformer

with extra("hf"):
    import torch
    from safetensors.torch import load_file, save_file
    from torch import Tensor

TEMPERATURE = 0.8  # that the authors divide logits by
KEPT = ("nhead", "nlayers", "emsize", "nhid_factor", "num_features", "max_num_classes", "bptt", "max_eval_pos")


def load(downloaded: Downloaded = lambda _: None) -> RowTransformer:
    """Return the model, fetching its weights the first time: 96 MB.

    Raises:
        OSError: the package cannot be had, or is not the one expected.
    """
    at = extracted(TABPFN, folder(), _convert, downloaded)
    config = json.loads((at / "config.json").read_text(encoding="utf-8"))
    return RowTransformer(load_file(at / "model.safetensors"), config["nhead"])


def _convert(members: Path, target: Path) -> None:
    target.mkdir()
    with warnings.catch_warnings():
        # The format of 2022; torch says so.
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        state, _, config = torch.load(members / CHECKPOINT, map_location="cpu", weights_only=True)
    weights = {name.removeprefix("module."): tensor.contiguous() for name, tensor in state.items()}
    weights.pop("criterion.weight", None)  # of the training loss
    save_file(weights, target / "model.safetensors")
    atomic.write_json(target / "config.json", {name: config[name] for name in KEPT})
    (target / METADATA).write_bytes((members / METADATA).read_bytes())
    (target / "LICENSE").write_text(f"{TABPFN.file} declares: {LICENSE}. It holds no licence text.\n", encoding="utf-8")


def answer(
    model: RowTransformer,
    rows: Tensor,
    known: Tensor,
    *,
    policy: Policy = PLAIN,
    classes: int | None = None,
    observer: Observer | None = None,
) -> Tensor:
    """Return log probabilities (asked, classes) of the rows behind the known ones.

    Args:
        rows: the table (known + asked, columns) as it is; a missing value is NaN.
        known: the classes (known,) of the first rows.
        policy, observer: of `RowTransformer`.
        classes: how many classes there are; one more than the largest known unless given.

    Raises:
        ValueError: a table that does not fit the model.
    """
    count = int(known.max()) + 1 if classes is None else classes
    if not 1 < count <= model.classes:
        raise ValueError(f"expected 2 to {model.classes} classes, got {count}")
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < count:
        raise ValueError(f"expected classes from 0 to {count - 1}, got {int(known.min())} to {int(known.max())}")
    options: dict[str, Any] = {"policy": policy, "observer": observer}
    logits = model(normalised(rows, len(known), model.features), known, **options)
    return torch.log_softmax(logits[:, :count] / TEMPERATURE, dim=-1)
