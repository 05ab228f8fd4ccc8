"""Names are found without loading the families, and are those that the families build."""

from planc.catalog import families, model_names


def test_names_read_as_text_are_the_families_own() -> None:
    loaded = {name: module.__name__.rsplit(".", 1)[-1] for module in families().values() for name in module.models()}
    assert model_names() == loaded
