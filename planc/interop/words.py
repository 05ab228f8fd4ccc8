"""Evaluates the words after `model` and `cluster` in a plan, by the plan language."""

from __future__ import annotations

from pathlib import Path

from planc.diag.diagnostic import Diagnostic
from planc.ir.hardware import Cluster
from planc.ir.model import Model
from planc.ir.plan import Plan

_MODEL, _CLUSTER = "llama_tiny", "1 x h100_node"


def read_model(words: str, folder: Path) -> Model | tuple[Diagnostic, ...]:
    """Returns the model that the sentence `model WORDS` names in a plan in `folder`, or its diagnostics."""
    plan = _plan_with(words, _CLUSTER, folder)
    return plan.model if isinstance(plan, Plan) else plan


def read_cluster(words: str, folder: Path) -> Cluster | tuple[Diagnostic, ...]:
    """Returns the cluster that the sentence `cluster WORDS` names in a plan in `folder`, or its diagnostics."""
    plan = _plan_with(_MODEL, words, folder)
    return plan.cluster if isinstance(plan, Plan) else plan


def _plan_with(model: str, cluster: str, folder: Path) -> Plan | tuple[Diagnostic, ...]:
    from planc.language.build import build_file

    if "\n" in model + cluster or "#" in model + cluster:
        model, cluster = model.partition("\n")[0].partition("#")[0], cluster.partition("\n")[0].partition("#")[0]
    path = (folder / "command line").resolve()
    text = f"plan p\nmodel {model}\nbatch 8 x 8 tokens microbatch 1\ncluster {cluster}\nmesh dp 8\ncompute fp32\n"
    built = build_file(path, unsaved={path: text})
    return built.plan or built.diagnostics
