"""Facts of Hugging Face's models, read from the installed transformers: how `base_model_tp_plan` and the head's own
rule divide the layers of each model type that planc knows. Run by `make interop-facts`; prints the table of
`planc/interop/systems/tp_plans.toml`."""

from __future__ import annotations

import sys

from planc.catalog import config_types


def rules(model_type: str) -> dict[str, str] | None:
    """The rules of a model type; None where transformers has none."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    if model_type not in CONFIG_MAPPING:
        return None
    config = CONFIG_MAPPING[model_type]
    plan = config.base_model_tp_plan
    head = getattr(MODEL_FOR_CAUSAL_LM_MAPPING.get(config, None), "_tp_plan", None) or {}
    return None if plan is None else {**plan, **head}


def main() -> int:
    """Print the table."""
    import transformers

    sys.stdout.write(f"# transformers {transformers.__version__}\n")
    for model_type in config_types():
        found = rules(model_type)
        if found is not None:
            lines = "".join(f'"{name}" = "{style}"\n' for name, style in found.items())
            sys.stdout.write(f"\n[{model_type}]\n{lines}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
