"""The tables of fields against what the systems' own parsers say, and against the functions that read them."""

import json
from pathlib import Path

import pytest

from planc.interop.systems import systems
from planc.interop.table import VERBS, rows

FACTS = Path(__file__).parent / "facts"


def defaults(system: str) -> dict[str, object]:
    facts = json.loads((FACTS / f"{system}.json").read_text())["flags"]
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


def test_every_flag_of_megatron_is_known_with_its_default() -> None:
    system = systems()["megatron"]
    facts = defaults("megatron")
    assert len(facts) > 800
    assert [name for name in facts if system.known(name) is None] == []
    known = {name: system.known(name) for name in facts}
    apart = {
        n: (f.default, facts[n]) for n, f in known.items() if f and f.treatment != "noted" and f.default != facts[n]
    }
    assert apart == {}


@pytest.mark.parametrize(("name", "unknown"), [("torchtitan", 0), ("maxtext", 400)])
def test_defaults_are_those_of_the_systems_source(name: str, unknown: int) -> None:
    """Every field that planc reads or refuses has the system's own default. MaxText's other keys (decoding, vision,
    audio, distillation) are unknown to planc: refused by name."""
    system, facts = systems()[name], defaults(name)
    known = {field: system.known(field) for field in facts}
    assert len([field for field, found in known.items() if found is None]) <= unknown
    assert {
        n: (f.default, facts[n]) for n, f in known.items() if f and f.treatment != "noted" and f.default != facts[n]
    } == {}


def test_every_setting_has_a_verb() -> None:
    assert {s for system in systems().values() for s in system.settings} <= set(VERBS)


@pytest.mark.parametrize("name", systems())
def test_a_field_that_is_read_decides_a_sentence(name: str) -> None:
    found = rows(systems()[name])
    assert [row.name for row in found if row.treatment == "read" and not row.becomes] == []
    assert [row.name for row in found if row.treatment != "read" and not row.becomes] == []


@pytest.mark.parametrize("name", systems())
def test_an_export_sets_fields_that_the_system_has(name: str) -> None:
    system = systems()[name]
    assert [field for field in system.writes if system.known(field) is None] == []
