"""Record what the real package, TensorFlow and all, generates: run once, in an environment of its own.

    python -m venv tf && tf/bin/pip install dm-clrs==2.0.3
    tf/bin/python tests/tasks/clrs_text/record_hashes.py > tests/tasks/clrs_text/hashes.json

It imports nothing of sharpmax.
"""

import hashlib
import json
import platform
from importlib.metadata import version

LENGTHS, SAMPLES, SEED = (4, 8, 16), 5, 3


def main():
    import clrs
    import tensorflow
    from clrs._src.clrs_text.huggingface_generators import clrs_generator

    assert tensorflow.Tensor.__module__.startswith("tensorflow")  # the real one
    hashes = {}
    for algorithm in sorted(clrs.CLRS_30_ALGS_SETTINGS):
        for hints in (False, True):
            for length in LENGTHS:
                text = "".join(
                    sample["question"] + sample["answer"]
                    for sample in clrs_generator({algorithm: [length]}, SAMPLES, hints, SEED)
                )
                name = f"{algorithm}-{length}-{'hints' if hints else 'plain'}"
                hashes[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    packages = ("dm-clrs", "tensorflow", "jax", "numpy")
    about = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    print(json.dumps({"versions": about, "samples": SAMPLES, "seed": SEED, "sha256": hashes}, indent=1))


if __name__ == "__main__":
    main()
