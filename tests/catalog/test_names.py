"""Names are found without loading the families, and are those that the families build."""

from planc.catalog import families, model_names


def test_names_read_as_text_are_the_families_own() -> None:
    assert model_names() == {name: file for file, family in families().items() for name in family.sizes}
    assert all(family.name == file for file, family in families().items())
