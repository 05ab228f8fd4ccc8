"""Facts of real configurations of DeepSpeed and Accelerate: what each system's own parser makes of them.

    python tests/interop/real_trainers.py FOLDER > tests/interop/real_trainers.json

FOLDER holds clones of the repositories below, as OWNER+NAME/repo, and deepspeed 0.19.8 and accelerate 1.15.0 are
installed. Of each file the table has its repository, path and commit, the fields that planc reads or refuses
with their
values, and the parser's answer; `test_real_trainers.py` compares with the table, and needs neither the files
nor the parsers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORIES = (
    "huggingface/accelerate",
    "deepspeedai/DeepSpeed",
    "deepspeedai/DeepSpeedExamples",
    "axolotl-ai-cloud/axolotl",
    "huggingface/trl",
    "huggingface/alignment-handbook",
)
AUTO = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16.enabled": True,
    "fp16.enabled": False,
}
"""Values that a Trainer writes for "auto", with 2 sequences a device, 4 accumulation steps and bf16."""


FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
OWN = {
    "bare.yaml": f"{FSDP}fsdp_config: {{fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}}\n",
    "version.yaml": f"{FSDP}fsdp_config: {{fsdp_sharding_strategy: SHARD_GRAD_OP}}\n",
    "sizes.yaml": f"{FSDP}fsdp_config: {{fsdp_version: 2}}\n"
    "parallelism_config: {parallelism_config_dp_shard_size: 8}\n",
    "deep.yaml": "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n",
}
"""Files of our own that leave out what people always write, so that defaults count."""


def files(repository: Path) -> Iterator[tuple[str, str, str]]:
    """The files of a repository in JSON or YAML, each with its path, commit and text."""
    git = ["git", "-C", str(repository)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    names = subprocess.run([*git, "ls-tree", "-r", "--name-only", "HEAD"], capture_output=True, text=True, check=True)
    for name in names.stdout.split("\n"):
        if name.endswith((".json", ".yaml", ".yml")):
            shown = subprocess.run([*git, "show", f"HEAD:{name}"], capture_output=True, check=False)
            yield name, commit, shown.stdout.decode("utf-8", "replace")


def flat(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields by dotted path."""
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", [] if value == {} else value


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """The mapping of mappings that dotted paths stand for."""
    found: dict[str, Any] = {}
    for path, value in fields.items():
        *outer, name = path.split(".")
        place = found
        for word in outer:
            place = place.setdefault(word, {})
        place[name] = value
    return found


def decisive(system: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that planc reads or refuses, or does not know."""
    from planc.interop.systems import systems

    known = {name: systems()[system].known(name) for name in fields}
    return {n: v for n, v in fields.items() if (field := known[n]) is None or field.treatment != "noted"}


def by_deepspeed(fields: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The answer of DeepSpeedConfig on `ranks` data-parallel ranks, "auto" filled in as a Trainer does."""
    from deepspeed.runtime.config import DeepSpeedConfig

    filled = {n: AUTO.get(n, 1) if v == "auto" else v for n, v in fields.items() if v != "auto" or n in AUTO}
    given = nested(filled)
    given.setdefault("train_micro_batch_size_per_gpu", given.get("train_micro_batch_size_per_gpu"))
    given = {n: v for n, v in given.items() if v is not None}

    class Ranks:
        """A topology of data-parallel ranks alone."""

        def get_data_parallel_world_size(self) -> int:
            return ranks

    import deepspeed.comm as dist

    dist.get_rank = lambda group=None: 0  # the parser asks for a rank, and no process group is there
    try:
        config = DeepSpeedConfig(given, mpu=Ranks())
    except Exception as error:  # a refusal of the parser is its answer
        return {"error": type(error).__name__}
    zero = config.zero_config
    return {
        "train_batch_size": config.train_batch_size,
        "micro": config.train_micro_batch_size_per_gpu,
        "accumulation": config.gradient_accumulation_steps,
        "stage": int(zero.stage),
        "overlap_comm": bool(zero.overlap_comm),
        "offload_param": _device(zero.offload_param),
        "offload_optimizer": _device(zero.offload_optimizer),
        "bf16": config.bfloat16_config.enabled,
        "fp16": config.float16_config.enabled,
        "optimizer": config.optimizer_name or "",
        "autotp": config.tensor_parallel_config.autotp_size,
        "grad_accum_dtype": config.grad_accum_dtype or "",
        "communication_data_type": str(config.communication_data_type or ""),
    }


def _device(offload: Any) -> str:
    return "none" if offload is None else str(getattr(offload.device, "value", offload.device))


def by_accelerate(text: str) -> dict[str, Any]:
    """The answer of `accelerate launch`'s own loader and dataclasses."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.dataclasses import DeepSpeedPlugin, FullyShardedDataParallelPlugin

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(text)
        try:
            config = load_config_from_file(str(path))
            kind = str(getattr(config.distributed_type, "value", config.distributed_type))
            answer: dict[str, Any] = {
                "distributed_type": kind,
                "num_processes": getattr(config, "num_processes", None),
                "mixed_precision": str(config.mixed_precision),
            }
            defaults = launch_command_parser().parse_args(["x.py"])
            sizes = dict(getattr(config, "parallelism_config", None) or {})
            names = ("dp_replicate_size", "dp_shard_size", "cp_size", "sp_size", "tp_size")
            if sizes:
                chosen = {
                    n: int(sizes.get(f"parallelism_config_{n}", getattr(defaults, f"parallelism_config_{n}")))
                    for n in names
                }
                built = ParallelismConfig(**chosen)
                answer |= {n: getattr(built, n) for n in names}
            if kind == "FSDP":
                fsdp = dict(config.fsdp_config or {})
                names = (
                    "version",
                    "sharding_strategy",
                    "reshard_after_forward",
                    "offload_params",
                    "activation_checkpointing",
                )
                for n in names:
                    os.environ[f"FSDP_{n.upper()}"] = str(fsdp.get(f"fsdp_{n}", getattr(defaults, f"fsdp_{n}")))
                os.environ.pop("FSDP_AUTO_WRAP_POLICY", None)
                if fsdp.get("fsdp_auto_wrap_policy"):
                    os.environ["FSDP_AUTO_WRAP_POLICY"] = fsdp["fsdp_auto_wrap_policy"]
                plugin = FullyShardedDataParallelPlugin()
                if config.mixed_precision in ("bf16", "fp16"):
                    plugin.set_mixed_precision(config.mixed_precision)
                policy = plugin.mixed_precision_policy
                answer |= {
                    "fsdp_version": plugin.fsdp_version,
                    "strategy": str(getattr(plugin.sharding_strategy, "name", "")),
                    "reshard": plugin.reshard_after_forward if plugin.fsdp_version == 2 else None,
                    "offload": os.environ["FSDP_OFFLOAD_PARAMS"].lower() == "true",
                    "checkpointing": bool(plugin.activation_checkpointing),
                    "reduce_dtype": str(getattr(policy, "reduce_dtype", None)).removeprefix("torch."),
                    "wrap": getattr(plugin.auto_wrap_policy, "__name__", ""),
                }
            if kind == "DEEPSPEED":
                deep = dict(config.deepspeed_config or {})
                answer |= {
                    "config_file": bool(deep.get("deepspeed_config_file")),
                    "stage": DeepSpeedPlugin(zero_stage=deep.get("zero_stage")).zero_stage,
                    "accumulation": deep.get("gradient_accumulation_steps", 1),
                }
            return answer
        except Exception as error:  # a refusal of the parser is its answer
            return {"error": type(error).__name__}


def main() -> int:
    """Print the table."""
    import yaml

    base, rows, seen = Path(sys.argv[1]), [], set()
    for repository in REPOSITORIES:
        for path, commit, text in files(base / repository.replace("/", "+") / "repo"):
            row: dict[str, Any] = {"repository": repository, "path": path, "commit": commit[:12]}
            try:
                content = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
            except (ValueError, yaml.YAMLError):
                continue
            if not isinstance(content, dict):
                continue
            fields = dict(flat(content))
            if any(n == "train_batch_size" or n.startswith(("train_micro", "zero_optimization.")) for n in fields):
                row |= {"system": "deepspeed", "fields": decisive("deepspeed", fields)}
                tensor = int(fields.get("tensor_parallel.autotp_size") or 1)
                ranks = 8 // tensor // int(fields.get("sequence_parallel_size") or 1)
                row["parser"] = by_deepspeed(row["fields"], ranks)
            elif path.endswith("ml") and "distributed_type" in fields:
                row |= {"system": "accelerate", "fields": decisive("accelerate", fields), "parser": by_accelerate(text)}
            else:
                continue
            digest = json.dumps([row["fields"], row["parser"]], sort_keys=True)
            if digest not in seen and not re.search("TEMPLATE", path):
                seen.add(digest)
                rows.append(row)
    for name, text in OWN.items():
        fields = decisive("accelerate", dict(flat(yaml.safe_load(text))))
        own = {"repository": "", "path": name, "commit": "", "system": "accelerate", "fields": fields}
        rows.append(own | {"parser": by_accelerate(text)})
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    sys.stdout.write(f"[\n{lines}\n]\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
