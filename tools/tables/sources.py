"""Tables that say by which commit and command each committed record was made."""

from tools.tables.records import RESULTS, commit_of, markdown, read, table


def _sources(*experiments: str) -> str:
    rows = []
    for experiment in experiments:
        for file in sorted((RESULTS / experiment).glob("*/*.json")):
            record = read(*file.relative_to(RESULTS).parts)
            if not isinstance(record, dict) or "commit" not in record or "command" not in record:
                continue
            command = record["command"].replace("python -m sharpmax ", "sharpmax ")
            name = file.relative_to(RESULTS / experiment).as_posix()
            rows.append([f"`{name}`", f"`{command}`", record["device"], commit_of(record)])
    return markdown(["file", "command", "device", "commit"], rows)


@table
def sources_max_retrieval() -> str:
    """Return where the max-retrieval records came from."""
    return _sources("max-retrieval")


@table
def sources_alternatives() -> str:
    """Return where the records of the alternatives came from."""
    return _sources("alternatives")


@table
def sources_calibration() -> str:
    """Return where the calibration records came from."""
    return _sources("calibration")


@table
def sources_clrs_text() -> str:
    """Return where the CLRS-Text records came from."""
    return _sources("clrs-text")


@table
def sources_attention() -> str:
    """Return where PyTorch's attention records came from."""
    return _sources("attention")


@table
def sources_attention_jax() -> str:
    """Return where JAX's attention records came from."""
    return _sources("attention-jax")


@table
def sources_diagnose() -> str:
    """Return where the diagnoses came from."""
    return _sources("diagnose")


@table
def sources_certify() -> str:
    """Return where the certificates came from."""
    return _sources("certify")
