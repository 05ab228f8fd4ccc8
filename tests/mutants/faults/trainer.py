"""Faults in presets, receipts and checkpoints."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a preset is read again without the folder of the command line",
        file="planc/trainer/run/worker.py",
        text="_shrunk_axes(self._loaded.plan, self._preset.plan)",
        planted="_shrunk_axes(load_preset(self._preset.path).plan, self._preset.plan)",
        test="tests/trainer/test_resume.py::test_settings_of_the_preset_and_of_the_command_line_go_together",
    ),
    Fault(
        name="a token that goes to another expert counts as two",
        file="planc/trainer/receipt/routing.py",
        text="    return sum(abs(a - b) for a, b in pairs) // 2",
        planted="    return sum(abs(a - b) for a, b in pairs)",
        test="tests/trainer/test_routing.py::test_a_flip_takes_a_pick_from_one_expert_and_gives_it_to_another",
    ),
    Fault(
        name="a stale preset is trained",
        file="planc/trainer/preset/load.py",
        text="if actual != expected:",
        planted="if not actual:",
        test="tests/trainer/test_preset.py::test_a_source_that_changed_is_refused",
    ),
    Fault(
        name="an edited compiled plan is trained",
        file="planc/trainer/preset/load.py",
        text="if expected != checksum(data):",
        planted="if expected is None:",
        test="tests/trainer/test_preset.py::test_a_compiled_plan_that_was_edited_is_refused",
    ),
    Fault(
        name="a stranger's compiled plan may hold sentences of several lines",
        file="planc/ir/field_types.py",
        text="if len(value) > self.longest or not value.isprintable():",
        planted="if len(value) > self.longest:",
        test="tests/trainer/test_hostile_presets.py::test_a_hostile_compiled_plan_is_refused_and_runs_nothing",
    ),
    Fault(
        name="a compiled plan is not compared with its source",
        file="planc/trainer/preset/load.py",
        text="if again is not None and again.canonical() == plan.canonical():",
        planted="if again is not None:",
        test="tests/trainer/test_hostile_presets.py::test_a_compiled_plan_that_is_not_its_sources_is_refused",
    ),
    Fault(
        name="receipts of other seeds are compared",
        file="planc/trainer/receipt/crosscheck.py",
        text="fields = [f for f in MUST_AGREE if",
        planted='fields = [f for f in MUST_AGREE if f != "seed" and',
        test="tests/trainer/test_crosscheck.py::test_runs_that_had_no_reason_to_agree_are_refused",
    ),
    Fault(
        name="the third receipt is not looked at",
        file="planc/trainer/receipt/crosscheck.py",
        text="zip(*(r.losses for r in receipts), strict=True)",
        planted="zip(*(r.losses for r in receipts[:2]), strict=True)",
        test="tests/trainer/test_crosscheck.py::test_the_third_run_counts_too",
    ),
    Fault(
        name="every seed gives the same weights",
        file="planc/trainer/run/initial_weights.py",
        text='f"{seed} {name}".encode()',
        planted='f"{name}".encode()',
        test="tests/trainer/test_weights.py::test_layers_and_seeds_differ",
    ),
    Fault(
        name="held-out text is trained on",
        file="planc/trainer/data/stream.py",
        text='self._draw(self._parts[1], "held out", index)',
        planted='self._draw(self._parts[0], "held out", index)',
        test="tests/trainer/test_data.py::test_held_out_text_is_not_trained_on",
    ),
    Fault(
        name="a damaged file of a checkpoint is taken for whole",
        file="planc/trainer/checkpoint/directory.py",
        text="and _sha256(path / name) != file.sha256",
        planted="and False",
        test="tests/trainer/test_checkpoint.py::test_damage_is_found_and_nothing_is_touched",
    ),
    Fault(
        name="a run goes on with other data",
        file="planc/trainer/checkpoint/compatible.py",
        text="if sha256 != manifest.data_sha256 and DATA not in allowed:",
        planted="if False:",
        test="tests/trainer/test_resume.py::test_a_run_that_would_not_be_the_same_is_refused",
    ),
    Fault(
        name="the oldest checkpoints are kept",
        file="planc/trainer/checkpoint/directory.py",
        text="stored_checkpoints(folder)[:-keep] if keep else []",
        planted="stored_checkpoints(folder)[keep:] if keep else []",
        test="tests/trainer/test_checkpoint.py::test_the_newest_few_are_kept",
    ),
    Fault(
        name="every epoch has the first one's order",
        file="planc/trainer/data/tokens/source.py",
        text='f"{self.seed} epoch {epoch}"',
        planted='f"{self.seed} epoch 0"',
        test="tests/trainer/test_tokens.py::test_an_epoch_shows_every_sequence_once_and_the_held_out_ones_never",
    ),
    Fault(
        name="a batch of another size begins the data anew",
        file="planc/trainer/data/tokens/source.py",
        text="return shown + (step - 1 - at) * self.sequences",
        planted="return (step - 1) * self.sequences",
        test="tests/trainer/test_tokens.py::test_a_run_whose_batch_grows_goes_on_where_it_was",
    ),
    Fault(
        name="the order leads out of the data",
        file="planc/trainer/data/tokens/permutation.py",
        text="while (astray := found >= self.count).any():",
        planted="while (astray := found > self.count).any():",
        test="tests/trainer/test_tokens.py::test_a_permutation_meets_every_index_once",
    ),
    Fault(
        name="Muon takes no step ahead of its momentum",
        file="backends/cuda/runtime/muon.py",
        text='update = grad.lerp(state["exp_avg"], self._momentum)',
        planted='update = state["exp_avg"].clone()',
        test="tests/trainer/test_updates.py::test_torch_updates_as_the_reference_does",
    ),
    Fault(
        name="redone steps count as productive",
        file="planc/trainer/telemetry/goodput.py",
        text="productive_s = sum(last.values())",
        planted="productive_s = sum(seconds for _, seconds in steps)",
        test="tests/trainer/test_watching.py::test_goodput_counts_every_second_once",
    ),
)
