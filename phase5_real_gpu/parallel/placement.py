"""The parts of a model that each of several devices holds.

`tensor_parallel_size` devices share every layer; `pipeline_parallel_size` such groups, the stages, hold consecutive
layers. Two stages of two devices each, a model of four layers:

    stage 0   rank 0: half of layers 0 and 1      rank 1: the other half
    stage 1   rank 2: half of layers 2 and 3      rank 3: the other half

Attention is split by heads: a head needs no other head's queries, keys or values. The MLP is split by its inner numbers.
The embedding table and the output head are split by tokens. Norms and positions are small: every device holds them whole.

A mixture of experts can be split in two ways: either every device holds a slice of each expert, as of any other MLP, or
it holds some experts whole (expert parallelism). Every rank holds the router, and so knows which tokens chose its experts.

Sources: Shoeybi et al., "Megatron-LM" (2019), section 3; vllm/model_executor/layers/linear.py;
vllm/distributed/utils.py, get_pp_indices; vllm/model_executor/layers/fused_moe/expert_map_manager.py, determine_expert_map.
"""

from dataclasses import dataclass, replace

from phase2_attention_kvcache.model import ModelConfig


@dataclass(frozen=True)
class Place:
    """One rank's place among all: `tensor_rank` of `tensor_parallel_size` in stage `stage` of `num_stages`.

    Attributes:
        enable_expert_parallel: whether each rank holds whole experts of a mixture, instead of slices.
    """

    rank: int
    tensor_parallel_size: int = 1
    num_stages: int = 1
    enable_expert_parallel: bool = False

    @property
    def stage(self) -> int:
        return self.rank // self.tensor_parallel_size

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor_parallel_size

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    def share(self, size: int) -> range:
        """This rank's share of `size` rows. All shares are equal, except the last, which may be shorter."""
        each = -(-size // self.tensor_parallel_size)
        first = self.tensor_rank * each
        return range(min(first, size), min(first + each, size))

    def layers(self, num_layers: int) -> range:
        """This stage's layers. If they do not divide evenly, later stages hold one more."""
        return range(
            self.stage * num_layers // self.num_stages, (self.stage + 1) * num_layers // self.num_stages
        )

    def experts(self, num_experts: int) -> range:
        """The experts of which this rank holds a part. If they do not divide evenly, the first ranks hold one more."""
        if not self.enable_expert_parallel:
            return range(num_experts)
        each, more = divmod(num_experts, self.tensor_parallel_size)
        first = self.tensor_rank * each + min(self.tensor_rank, more)
        return range(first, first + each + (self.tensor_rank < more))

    def inner(self, config: ModelConfig) -> range:
        """The inner numbers of an MLP that this rank computes; all of them, if it holds whole experts."""
        return range(config.d_ff) if self.enable_expert_parallel else self.share(config.d_ff)

    def kv_heads(self, config: ModelConfig) -> range:
        """This rank's KV heads. If there are fewer heads than ranks, several ranks hold the same one."""
        if config.num_kv_heads >= self.tensor_parallel_size:
            return self.share(config.num_kv_heads)
        head = self.tensor_rank * config.num_kv_heads // self.tensor_parallel_size
        return range(head, head + 1)


def check_split(
    config: ModelConfig,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    enable_expert_parallel: bool = False,
) -> None:
    """Check that a model can be split in this way.

    Raises:
        ValueError: heads or the MLP do not divide, or there are more stages than layers or more ranks than experts.
    """
    t, heads, kv_heads = tensor_parallel_size, config.num_heads, config.num_kv_heads
    if pipeline_parallel_size > config.num_layers:
        raise ValueError(
            f"pipeline_parallel_size is {pipeline_parallel_size}, and the model has {config.num_layers} layers: "
            "a stage needs at least one"
        )
    if enable_expert_parallel and t > config.num_experts:
        raise ValueError(
            f"enable_expert_parallel distributes experts over {t} ranks, and the model has {config.num_experts or 'none'}: "
            "leave it out, or lower tensor_parallel_size"
        )
    inner = 0 if enable_expert_parallel else config.d_ff  # the dimension of an MLP that is split
    for what, size in (("query heads", heads), ("numbers inside its MLP", inner)):
        if size % t:
            raise ValueError(
                f"tensor_parallel_size is {t}, and the model has {size:,} {what}: choose a size that divides them"
            )
    if kv_heads % t and t % kv_heads:
        raise ValueError(
            f"tensor_parallel_size is {t}, and the model has {kv_heads} KV heads: choose a size that divides them, "
            "or a multiple of them"
        )


def config_of_rank(config: ModelConfig, place: Place) -> ModelConfig:
    """The shape of one rank's part: a model with fewer heads, layers and tokens, and with vectors of the same length."""
    t, layers = place.tensor_parallel_size, place.layers(config.num_layers)
    return replace(
        config,
        vocab_size=-(-config.vocab_size // t),
        num_layers=len(layers),
        windows=config.windows[layers.start : layers.stop],
        no_rope_layers=tuple(i - layers.start for i in config.no_rope_layers if i in layers),
        num_heads=config.num_heads // t,
        num_kv_heads=len(place.kv_heads(config)),
        d_ff=len(place.inner(config)),
    )


# How each tensor is split; the others are held whole. A bias belongs to the outputs: if the inputs are split, it is whole.
BY_HEADS, BY_INNER, BY_TOKENS = ".qkv", (".up", ".gate_up"), ("token_table", "head")
BY_INPUTS = (".out", ".down")


def rows_of_rank(config: ModelConfig, name: str, place: Place) -> list[range] | None:
    """The outputs (rows) of a whole model's tensor that this rank holds, in order; None: all of them.

    Args:
        config: of the whole model. name: of a parameter of `Transformer`, such as "blocks.3.attention.qkv.weight".
    """
    layer = name.rpartition(".")[0]
    if layer in BY_TOKENS:
        return [place.share(config.vocab_size)]
    if layer.endswith(BY_INNER):
        inner = place.inner(config)
        gated = layer.endswith("gate_up")  # all gates, then all values
        return [shift(inner, first) for first in ((0, config.d_ff) if gated else (0,))]
    q, kv = place.share(config.num_heads), place.kv_heads(config)
    heads: list[range] = []
    if layer.endswith(BY_HEADS):
        kv_size = config.num_kv_heads
        heads = [q, shift(kv, config.num_heads), shift(kv, config.num_heads + kv_size)]  # all q, all k, all v
    if layer.endswith((".q_norm", ".k_norm")) and config.choices.qk_norm == "row":  # over all heads
        heads = [q if layer.endswith(".q_norm") else kv]
    return [range(part.start * config.head_dim, part.stop * config.head_dim) for part in heads] or None


def columns_of_rank(config: ModelConfig, name: str, place: Place) -> range | None:
    """The inputs (columns) of a matrix that this rank holds; None: all of them."""
    layer, _, kind = name.rpartition(".")
    if kind != "weight" or not layer.endswith(BY_INPUTS):
        return None
    return place.inner(config) if "mlp" in layer else place.share(config.num_heads * config.head_dim)


def shift(numbers: range, by: int) -> range:
    return range(numbers.start + by, numbers.stop + by)
