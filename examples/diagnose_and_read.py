"""Diagnose a small pretrained model and read what the page shows, in Python. Some seconds on one core.

`rxnmapper` is an ALBERT of 0.8 M parameters that reads chemical reactions; its weights come from PyPI.
"""

import tempfile
from pathlib import Path

import sharpmax

REACTIONS = "CC(=O)Cl.OCC>>CCOC(C)=O.Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1."


def main():
    """Measure every head at four lengths, print the fastest dispersing ones, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "reactions.txt"
        text.write_text(REACTIONS * 12)
        result = sharpmax.hf.diagnose("rxnmapper", texts=[text], lengths=[32, 64, 128, 256], out=folder, quiet=True)
        print("layer.head  rate dH/d log n  entropy at 32 tokens  at 256 tokens, nats")
        for head in result.metrics["fastest_losing"][:5]:
            place = f"{head['layer']}.{head['head']}"
            print(f"{place:10} {head['rate']:15.2f} {head['entropy_short']:20.2f} {head['entropy_long']:15.2f}")
        page = Path(result.save_page(Path(folder) / "diagnosis.html"))
        print("page:", page.name, "opens offline:", "<script src=" not in page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
