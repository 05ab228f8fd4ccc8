"""Faults in the torch program and its rules."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="gradients that fully_shard adds up are summed in the compute dtype",
        file="backends/cuda/rules/dtensor_gradients.py",
        text="dtype = plan.precision.reduce if _added_up(roles) else plan.precision.compute",
        planted="dtype = plan.precision.compute",
        test="tests/audit/test_predictions.py::test_golden_of_the_predictions",
    ),
    Fault(
        name="a smaller world keeps the whole batch",
        file="backends/common/shrunk.py",
        text="sequences=plan.batch.sequences // share",
        planted="sequences=plan.batch.sequences",
        test="tests/audit/test_audit.py::test_a_smaller_world_changes_data_parallel_ranks_alone",
    ),
    Fault(
        name="cuda: the loss is summed over microbatches",
        file="backends/cuda/emit/step.py",
        text="labels[index]) / len(inputs)",
        planted="labels[index])",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[fsdp]",
    ),
    Fault(
        name="cuda: replicas do not reduce their gradients",
        file="backends/cuda/emit/step.py",
        text="model.set_requires_all_reduce(last)",
        planted="model.set_requires_all_reduce(False)",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[hsdp]",
    ),
    Fault(
        name="cuda: two data ranks train on the same rows",
        file="backends/cuda/emit/global_ops.py",
        text="index = index * MESH[axis] + mesh.get_local_rank(axis)",
        planted="index = index + mesh.get_local_rank(axis)",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[hsdp]",
    ),
    Fault(
        name="cuda: clipping ignores the pipeline's axis",
        file="backends/cuda/emit/global_ops.py",
        text='_sum_of_stages(roles, "Each stage knows the norm of its own layers.", "norm"),',
        planted='"",',
        test="tests/cuda/test_parity.py::test_trains_as_one_process[1f1b]",
    ),
    Fault(
        name="cuda: the stages are swapped",
        file="backends/cuda/emit/pipeline.py",
        text="begin, end = STAGES[index]",
        planted="begin, end = STAGES[len(STAGES) - 1 - index]",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[1f1b]",
    ),
    Fault(
        name="cuda: gradients that are left as sums stay so",
        file="backends/cuda/emit/global_ops.py",
        text="parameter.grad = grad.redistribute(placements=parameter.placements)",
        planted="parameter.grad = grad",
        test="tests/cuda/test_parity.py::test_issues_the_collectives_that_the_rules_predict[eight_microbatches]",
    ),
    Fault(
        name="cuda: the stages of a V go round the ranks",
        file="backends/cuda/emit/pipeline.py",
        text='"[rank, len(STAGES) - 1 - rank]"',
        planted='"[rank, rank + len(STAGES) // 2]"',
        test="tests/cuda/test_parity.py::test_trains_as_one_process[zbv]",
    ),
    Fault(
        name="cuda: gathered tails of sequences are in the order of ranks",
        file="backends/cuda/emit/context_parallel.py",
        text="torch.cat((heads, tails.flip(0)))",
        planted="torch.cat((heads, tails))",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[cp]",
    ),
    Fault(
        name="cuda: every rank's rotary positions begin at zero",
        file="backends/cuda/emit/context_parallel.py",
        text="module.positions = sequence_rows(mesh)",
        planted="module.positions = None",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[ring]",
    ),
    Fault(
        name="cuda: what the ring has summed is not rescaled",
        file="backends/cuda/emit/context_parallel.py",
        text="out[:, :, rows] * weights[0] + part",
        planted="out[:, :, rows] + part",
        test="tests/cuda/test_parity.py::test_trains_as_one_process[ring]",
    ),
    Fault(
        name="cuda: a checkpoint is traced around DTensors",
        file="backends/cuda/emit/blocks.py",
        text="return not roles.tensor",
        planted="return True",
        test="tests/cuda/test_emit.py::"
        "test_a_compiled_block_is_replayed_whole_under_tensor_parallelism_and_sees_its_replay_without",
    ),
    Fault(
        name="cuda: the missing rank is not asked for",
        file="backends/cuda/runtime/collective_timeout.py",
        text='store.set(f"planc/left/{dist.get_rank()}", "1")',
        planted="pass",
        test="tests/cuda/test_collective_timeout.py::test_the_others_stop_and_name_the_rank_the_axis_and_the_collective",
    ),
    Fault(
        name="cuda: the embedding's output is not cloned",
        file="backends/cuda/emit/parallelize.py",
        text="lambda module, inputs, output: output.clone()",
        planted="lambda module, inputs, output: output",
        test="tests/cuda/test_emit.py::test_a_sentence_writes_what_it_needs",
    ),
    Fault(
        name="cuda: rows are not padded to the shard axes",
        file="backends/cuda/rules/pad_dim0.py",
        text="// rows * ceil(rows / parts) * parts",
        planted="// rows * rows",
        test="tests/cuda/test_rules.py::test_padding_at_2048_ranks",
    ),
    Fault(
        name="an expert's gradient is a mean over the ranks that store it",
        file="backends/cuda/emit/experts.py",
        text="    ranks = mesh.size(*roles.shard, *roles.replicate)",
        planted="    ranks = mesh.size(*experts.shard, *experts.replicate)",
        test="tests/cuda/test_moe.py::test_trains_as_one_process[ep_fsdp]",
    ),
    Fault(
        name="the balance of experts is as steep as there are sequences",
        file="backends/cuda/models/balance.py",
        text="        slope = self.slope * experts * all_counts / (k * tokens**2)",
        planted="        slope = self.slope * experts * all_counts / (k * tokens)",
        test="tests/cuda/test_balance.py::test_the_gradient_is_that_of_the_formula",
    ),
    Fault(
        name="the weights of a token's experts do not sum to one",
        file="backends/cuda/models/moe.py",
        text="    if routing.normed:",
        planted="    if routing.groups > 1:",
        test="tests/cuda/test_picks.py::test_softmax_weights_sum_to_one",
    ),
    Fault(
        name="rows go to their experts without their weights, as far as the prediction knows",
        file="backends/cuda/rules/__init__.py",
        text="    expert_rows_per_rank,\n    exchange_gate_weights,\n",
        planted="    expert_rows_per_rank,\n",
        test="tests/audit/test_experts.py::test_a_layout_with_experts_moves_what_was_predicted[ep_fsdp]",
    ),
)
