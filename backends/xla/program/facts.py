"""The facts of a plan that decide the text of its JAX program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JaxFacts:
    """Facts of a plan. The program modules test them; the defaults are those of the modules as they stand."""

    axis: str = "pp"
    """The axis of the pipeline."""
    chunks: int = 1
    """Stages of a rank."""
    forwards_first: bool = False
    """All forwards run before the first backward."""
    delay: int = 0
    """Ticks that a microbatch waits between two stages of the first rank, and of the last."""
    uneven: bool = False
    """Stages have unequal numbers of layers: short ones are padded."""
    recomputes_groups: bool = False
    """Groups of layers are recomputed, not each layer."""
    gathers_each_pass: bool = False
    """Parameters are gathered where they are used, in each forward and backward."""
    widens: bool = False
    """The pipeline computes with copies of the parameters in the compute dtype, and adds up gradients in fp32."""
    padded: bool = False
    """Some parameters are stored with padding to equal shards."""
    by_hand: bool = False
    """Other axes than the pipeline's have several ranks."""
    balanced: bool = False
    """A rank holds a chunk from each end of a sequence, not one chunk."""
    experts: int = 0
    """Experts of a layer; their picks are counted beside the hidden state."""
    hidden: str = "hidden"
    """The activation between blocks."""

    @property
    def order(self) -> str:
        """The order in which a rank works."""
        return {
            (False, False): "The last rank runs a microbatch's backward in the tick of its forward.",
            (False, True): "A stage runs a round of microbatches before the rank's next stage.",
            (True, False): "All forwards run before the first backward.",
            (True, True): "A stage runs all microbatches before the rank's next stage; all backwards come after that.",
        }[self.forwards_first, self.chunks > 1]

    @property
    def stores_loss_gradients(self) -> bool:
        """The gradient of a microbatch's loss is stored until the backward of the last stage takes it: what the last
        rank received meanwhile goes to another stage."""
        return self.forwards_first or self.delay > 0

    @property
    def waits(self) -> str:
        """The words about a gradient of the loss that waits for its backward; "" without."""
        return ", which waits" if self.forwards_first else ""

    devices: int = 1
    """Devices of the mesh."""
    torus: bool = True
    """The devices are linked as a torus."""
    slices: bool = True
    """Mesh axes have ranks in several slices."""

    @property
    def arranged(self) -> str:
        """How the mesh's axes lie on the devices."""
        if self.slices:
            return "with SLICES across slices, and neighbours along an axis linked on each slice's torus if possible"
        return (
            "with neighbours along an axis linked on the torus if possible" if self.torus else "with the axes of MESH"
        )

    narrow_state: bool = True
    """State is stored in other dtypes than fp32."""
    params_on_host: bool = True
    """Parameters rest in host memory."""
    optimizer_on_host: bool = True
    """The optimizer's state rests in host memory."""
    updates_where_it_rests: bool = True
    """An update is computed in the layout in which parameters rest."""
    some_layers_wide: bool = True
    """Some layers multiply in the compute dtype what others quantize."""
    several_stacks: bool = True
    """The layers are in several stacks, by kind."""
    reduce: str = "fp32"
    """The dtype in which gradients are summed: fp32 or bf16."""
    sums_stated: bool = True
    """A weight's gradient gets a layout before its sum."""

    float8: bool = True
    """A generator holds matrices as float8, with scales."""
    block: int = 128
    """Elements along each side of a block of float8 with one scale; 0: one scale for a matrix."""
    restacks: bool = True
    """Trainer and generator have layers in another order, or stages of unequal lengths."""
    pads: bool = True
    """The generator's parts of some tensors are unequal: it has padding at their ends."""

    offloads_input: bool = False
    """The input of each layer is offloaded to the host."""

    names_activations: bool = True
    """Some activations are saved by their names."""
    capacity: float = 0
    """Slots of an expert for each of its rows in even routing; 0: no token is dropped."""
    stages: bool = False
    """Experts are in the stages of a pipeline, whose body is per-rank code already."""
    kernel: bool = False
    """A kernel multiplies for the gradients of experts' weights."""
    combined: str = "moe"
    """The activation that is the sum of the experts' outputs."""
    routed: str = "moe.routed"
    """The activation that experts take."""
    expert_axes: tuple[str, ...] = ("ep",)
    """Axes that divide the tokens or the weights of experts: a pipeline maps over no others, since gradients would be
    summed over these too."""
    sequence: tuple[str, ...] = ("cp",)
    """Axes that divide a sequence."""
    exchange: tuple[str, ...] = ("ep",)
    """Axes of the all-to-all of rows; () without."""
    sharing: tuple[str, ...] = ()
    """Axes of the ranks that share each expert; () without."""
    gathers_rows: bool = False
    """The ranks that share an expert have different rows, which they all-gather."""
    holders: int = 2
    """Ranks that each have some of the experts."""
    senders: int = 2
    """Ranks from which an expert has rows."""
    token_ranks: int = 2
    """Ranks with different tokens."""
    same_tokens: int = 1
    """Ranks with the same tokens, over which JAX sums the gradient of the balance loss."""
    ragged: bool = False
    """The all-to-all sends exactly the rows in use."""
    gathers_weights: bool = True
    """Experts' weights are all-gathered at each use."""
    casts: bool = True
    """The compute dtype is not fp32."""
    compute: str = "bf16"
    """The compute dtype."""
    one_each: bool = False
    """Each rank has one expert."""
    weight_axes: str = ""
    """The axes over which experts' weights are all-gathered."""

    @property
    def exchanges(self) -> bool:
        """Rows go to other ranks."""
        return bool(self.exchange) or self.gathers_rows

    @property
    def same_rows(self) -> bool:
        """The ranks that share an expert have the same rows: gradients of these are summed over them."""
        return bool(self.sharing) and not self.gathers_rows

    @property
    def changes_weights(self) -> bool:
        """Experts' weights are gathered or cast at each use."""
        return self.gathers_weights or self.casts

    @property
    def along(self) -> str:
        """The axes of the all-to-all of rows."""
        return " and ".join(self.exchange)

    @property
    def of_names(self) -> str:
        """The second use of a name."""
        return "; `remat` can save it" if self.names_activations else ""

    @property
    def of_weights(self) -> str:
        """The dtype and the gather of experts' weights at each use."""
        cast = f" in {self.compute}" if self.casts else ""
        gathered = f", all-gathered over {self.weight_axes}"
        return cast + (gathered if self.gathers_weights else "; its gradient is summed over the ranks in fp32")

    @property
    def of_mlp(self) -> str:
        """Sentences about the function of the experts."""
        if not self.capacity:
            return (
                "`mlp(rows [R, D], weights [R], params, times)` runs a rank's experts on rows sorted by expert,\n"
                "    which `times` multiplies by a parameter; rows beyond those of the last expert are ignored.\n"
                "    No token is dropped."
            )
        return (
            "`mlp(rows [X, C, D], weights [X, C], params)` runs a rank's experts on the rows\n    in their C slots.\n"
            f"    An expert has {self.capacity:g} times its even share of slots for each rank's tokens;\n"
            "    tokens beyond that are dropped."
        )


FACTS = JaxFacts()
