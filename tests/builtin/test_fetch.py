"""A built-in model is kept under its name, version and checksum, and fetched once."""

from sharpmax.builtin import BUILTIN
from sharpmax.builtin import fetch as fetching


def test_a_model_is_fetched_into_its_own_folder_of_the_cache(tmp_path, monkeypatch):
    model = BUILTIN["rxnmapper"]
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path))
    assert not fetching.is_cached(model)

    def unpacked(wheel, folder, convert):
        assert (wheel.package, wheel.version, wheel.sha256) == (model.package, model.version, model.sha256)
        assert "the weights of 'rxnmapper'" in wheel.holds
        convert(tmp_path, folder)
        return folder

    monkeypatch.setattr(fetching, "unpacked", unpacked)
    folder = fetching.fetch(model, lambda of, source, target: target.mkdir(parents=True))
    assert folder == tmp_path / "models" / "rxnmapper-0.4.3-27876a42"
    assert fetching.is_cached(model)
