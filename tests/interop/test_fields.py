"""The tables of fields against what the systems' own parsers say, and against the functions that read them."""

import json
import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from planc.interop.document import FieldValue
from planc.interop.fields import field_tables
from planc.interop.system import System
from planc.interop.systems import systems
from planc.interop.table import VERBS, rows

FACTS = Path(__file__).parent / "facts"
SYSTEMS = Path(__file__).parents[2] / "planc" / "interop" / "systems"
TABLES = sorted({*SYSTEMS.glob("*.toml")} - {SYSTEMS / "tp_plans.toml"})


def defaults(system: str) -> dict[str, object]:
    facts = json.loads((FACTS / f"{system}.json").read_text())["flags"]
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


def apart(system: System, facts: dict[str, object]) -> dict[str, tuple[object, object]]:
    """Fields whose default decides something, and is not that of the system's parser."""
    known = {name: field for name in facts if (field := system.known(name)) and field.treatment != "noted"}
    return {n: (f.default, facts[n]) for n, f in known.items() if f.default != facts[n]}


@pytest.mark.parametrize(
    "file", sorted({*SYSTEMS.glob("*.toml")} - {SYSTEMS / "tp_plans.toml"}), ids=lambda file: file.stem
)
def test_a_table_says_each_thing_once(file: Path) -> None:
    """A name stands in one row, rows that share the rest and follow each other are one, and only what is read gives no
    reason."""
    for table in tomllib.loads(file.read_text()).values():
        names = [name for row in table for name in row["names"].split()]
        assert len({*names}) == len(names)
        shared = [repr(sorted((key, value) for key, value in row.items() if key != "names")) for row in table]
        assert [a for a, b in pairwise(shared) if a == b and "aliases" not in a] == []
    fields = [f for found in field_tables(file.stem).values() for f in found]
    assert all(bool(f.why) == (f.treatment != "read") for f in fields)


def test_every_flag_of_megatron_is_known_with_its_default() -> None:
    system = systems()["megatron"]
    facts = defaults("megatron")
    assert len(facts) > 800
    assert [name for name in facts if system.known(name) is None] == []
    assert apart(system, facts) == {}


def test_a_table_is_the_same_whatever_the_process_has_done_before() -> None:
    """Functions outside planc keep what they are called with; those texts are no names that a reader uses."""
    system = systems()["megatron"]
    before = rows(system)
    for field in system.fields:
        re.compile(re.escape(field.name))
    assert rows(system) == before


PLANTED: dict[str, FieldValue] = {
    "tensor_model_parallel_size": 2,
    "cp_comm_type": ("a2a",),
    "use_tp_pp_dp_mapping": True,
    "use_distributed_optimizer": True,
    "num_distributed_optimizer_instances": 2,
    "data_parallel_sharding_strategy": "no_shard",
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "group_query_attention": True,
    "num_query_groups": None,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "make_vocab_size_divisible_by": 64,
    "moe_router_topk": 1,
    "moe_token_dispatcher_type": "alltoall",
    "kv_lora_rank": 512,
    "main_grads_dtype": "bf16",
    "fp8_recipe": "tensorwise",
    "optimizer_offload_fraction": 0.5,
    "outer_dp_sharding_strategy": "optim",
    "attention_backend": "flash",
}


def test_a_default_that_a_tired_colleague_changes_is_seen() -> None:
    system, facts = systems()["megatron"], defaults("megatron")
    assert len(PLANTED) >= 20
    changed = [
        replace(system, fields=tuple(replace(f, default=d) if f.name == name else f for f in system.fields))
        for name, d in PLANTED.items()
    ]
    assert [list(apart(one, facts)) for one in changed] == [[name] for name in PLANTED]


@pytest.mark.parametrize(("name", "unknown"), [("torchtitan", 0), ("maxtext", 400), ("automodel", 0)])
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
