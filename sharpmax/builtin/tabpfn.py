"""TabPFN v1, a Transformer that reads tables: where its weights are, as data.

They come inside the authors' own source package of October 2022, which declares MIT and holds no licence text; the
authors' later releases declare MIT as well and carry the text of Apache-2.0. Nothing of it is part of this project.
"""

from pathlib import Path

from sharpmax.files.sdists import Sdist
from sharpmax.files.wheels import cache_folder

ABOUT = "TabPFN v1, classifies the rows of a table; 12 layers, 4 heads, trained on tables of at most 1024 rows"
PARAMETERS = "25.8 M"
LICENSE = "MIT"
CHECKPOINT = "checkpoint"
METADATA = "PKG-INFO"

TABPFN = Sdist(
    package="tabpfn",
    version="0.1",
    sha256="8a37c4131e13ad9f9aae678e659b1169e7e1bd4bbcae2b3fc2718df8ae7fdc88",
    size=95_924_023,
    members={
        "tabpfn-0.1/tabpfn/models_diff/prior_diff_real_checkpoint_n_0_epoch_42.cpkt": CHECKPOINT,
        "tabpfn-0.1/PKG-INFO": METADATA,
    },
    holds="the weights of TabPFN v1",
)


def folder() -> Path:
    """Return where the converted weights are, or would be, kept."""
    return cache_folder() / "models" / f"{TABPFN.package}-{TABPFN.version}-{TABPFN.sha256[:8]}"
