"""`planc init`: a plan for every model and machine, which the search reads as a space."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.catalog import model_names
from planc.cli import main
from planc.language.build import build_file
from planc.searching.space import Space

CLUSTERS = ("2 x h100_node", "tpu_v5p(4x4x4)", "1 x rtx4090_node(1)")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_model_gets_a_plan_that_only_leaves_values_open(cluster: str, tmp_path: Path) -> None:
    """The plan's only findings are what is left open (E0115), and it is a space with layouts."""
    for at, name in enumerate(sorted(model_names())):
        path = tmp_path / f"{name}.plan"
        assert main(["init", name, "--cluster", cluster, "-o", str(path)]) == 0
        found = {d.code for d in build_file(path).diagnostics}
        assert found == {"E0115"}, (name, found)
        if at % 8 == 0:
            assert Space(path, None).variants


def test_a_config_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    config |= {"num_hidden_layers": 4, "num_key_value_heads": 4, "vocab_size": 1024, "tie_word_embeddings": False}
    file = tmp_path / "my-model" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(config))
    path = file.parent / "x.plan"
    assert main(["init", str(file), "--cluster", "h100_node", "--batch", "64", "-o", str(path)]) == 0
    assert path.read_text().startswith("plan my_model\n") and "batch     64 x 4096" in path.read_text()
    assert {d.code for d in build_file(path).diagnostics} == {"E0115"}


@pytest.mark.parametrize(
    "words", [("llama3_7b", "8 x h100_node"), ("llama3_8b", "8 x H100"), ('x"y.json', "h100_node")]
)
def test_unknown_words_are_findings(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", words[0], "--cluster", words[1]]) == 1
    said = capsys.readouterr()
    assert not said.out and "error[E01" in said.err


def test_a_step_has_about_four_million_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "llama3_8b", "--cluster", "8 x h100_node", "--format", "json"]) == 0
    assert "batch     1024 x 4096 tokens microbatch ?" in json.loads(capsys.readouterr().out)["text"]


@pytest.mark.parametrize("name", ["Qwen2.5-32B", "Qwen/Qwen2.5-32B-Instruct", "qwen2_5_32b"])
def test_a_model_may_have_its_name_on_the_hub(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", name, "--cluster", "2 x h100_node"]) == 0
    assert "\nmodel     qwen2_5_32b\n" in capsys.readouterr().out


def test_first_steps_that_lead_elsewhere_say_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config has no layout, a Python file is never run, a command is no code, and `help` is asked of a command."""
    config, registry = tmp_path / "config.json", tmp_path / "registry.py"
    config.write_text('{"model_type": "qwen2", "vocab_size": 8}')
    registry.write_text("from torchtitan import x\n")
    for words, status, said in (
        (["check", str(config)], 1, "`planc init config.json"),
        (["check", str(registry)], 1, "a Python file is never run"),
        (["explain", "search"], 2, "`planc search --help`"),
    ):
        assert main(words) == status
        captured = capsys.readouterr()
        assert said in " ".join((captured.out + captured.err).split()), words
    with pytest.raises(SystemExit, match="0"):
        main(["help", "init"])
    assert "--cluster" in capsys.readouterr().out
