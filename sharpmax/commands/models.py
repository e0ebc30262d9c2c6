"""The list of built-in models, for people."""

from sharpmax.builtin import BUILTIN, tabpfn
from sharpmax.builtin.fetch import is_cached
from sharpmax.files.wheels import cache_folder


def print_models() -> None:
    """Print each built-in model: its name, what it is, where it comes from, its licence, and whether it is cached."""
    for model in BUILTIN.values():
        cached = "cached" if is_cached(model) else "not fetched yet"
        print(f"{model.name:10} {model.family}, {model.parameters}: {model.about}")
        print(f"{'':10} from {model.package} {model.version}; {cached}; licence: {model.license}")
    cached = "cached" if tabpfn.folder().is_dir() else "not fetched yet"
    print(f"{'tabpfn':10} {tabpfn.PARAMETERS}: {tabpfn.ABOUT}")
    print(f"{'':10} from {tabpfn.TABPFN.package} {tabpfn.TABPFN.version}; {cached}; licence: {tabpfn.LICENSE}")
    print(f"{'':10} it reads no text: for `sharpmax reproduce tables` only")
    print(f"Cache: {cache_folder()}. Any local folder or hub name works as well.")
