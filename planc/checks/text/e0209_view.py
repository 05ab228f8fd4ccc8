"""E0209: a view that is no other factorisation of the same ranks, or an axis where its view does not hold."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0209",
    title="a view that does not fit its ranks",
    reads="text",
    why="""A view divides the ranks of neighbouring mesh axes anew, for the experts: its sizes must
multiply to theirs, its axes need names of their own, and the axes it stands for must lie side by side.
Tools that derive the expert mesh from the tensor-parallel degree leave users to guess where a number
came from; here every size is written, and the products are compared. The view's axes exist for the experts
only, and the axes that it stands for do not exist there, so an `override` of a parameter names those that do.""",
    bad="""plan example
model     mixtral_8x7b(layers = 16)
batch     256 x 4096 tokens microbatch 1
cluster   4 x h100_node
mesh      fsdp 4 > tp 8
view      efsdp 8 > ep 8 of fsdp, tp for experts
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
shard     experts over ep
store     params, grads, optimizer over efsdp for experts
gather    params per step
compute   fp32
recompute blocks
""",
    good="""plan example
model     mixtral_8x7b(layers = 16)
batch     256 x 4096 tokens microbatch 1
cluster   4 x h100_node
mesh      fsdp 4 > tp 8
view      efsdp 4 > ep 8 of fsdp, tp for experts
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
shard     experts over ep
store     params, grads, optimizer over efsdp for experts
gather    params per step
compute   fp32
recompute blocks
""",
)
