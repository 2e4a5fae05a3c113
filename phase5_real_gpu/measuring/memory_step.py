"""The bytes that one decode step moves, by kind, and the time that they take."""

from dataclasses import dataclass

from phase1_tokens_embeddings.weights import ModelShape, kv_per_token
from phase2_attention_kvcache.measuring.roofline import work_of_batch

GB = 10**9


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one decode step moves: one new token for each of `users` users.

    Attributes:
        weights: matrices, read once for all users together. Norms and biases are negligible and left out.
        kv: keys and values of all users, read once; the new ones, written.
        activations: vectors between the operations, each written once and read once. They are small, so
            they stay in a cache.
    """

    weights: int
    kv: int
    activations: int

    @property
    def from_memory(self) -> int:
        return self.weights + self.kv

    def seconds(self, gb_s: float) -> float:
        """The shortest time of the step at this bandwidth."""
        return self.from_memory / (gb_s * GB)


def numbers_between(shape: ModelShape) -> int:
    """The number of values that the operations of one token pass to one another: the size of all results."""
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    d, wide = shape.d_model, shape.d_ff * max(1, shape.experts_per_token)
    mlp = wide * (3 if shape.choices.gated else 2)  # up, activated; or gate, up, their product
    # Norm, qkv, attention, out, sum, norm, MLP, down, sum.
    a_layer = d + (q + 2 * kv) + q + d + d + d + mlp + d + d
    return d + shape.num_layers * a_layer + d + shape.vocab_size


def step_bytes(shape: ModelShape, users: int, context: int, bytes_per_number: int = 2) -> StepBytes:
    """The bytes of one decode step.

    Args:
        context: tokens of each user, the new one included.

    Raises:
        ValueError: no user, no token, or more tokens than the model was made for.
    """
    if users < 1 or not 1 <= context <= shape.max_context:
        raise ValueError(
            f"{users} users with {context:,} tokens: {shape.name} takes 1 user or more, 1 to {shape.max_context:,} tokens"
        )
    kv = kv_per_token(shape, bytes_per_number)
    weights = int(work_of_batch(shape, [(0, 1)], bytes_per_number).bytes) - kv
    between = 2 * users * numbers_between(shape) * bytes_per_number
    return StepBytes(weights, users * context * kv, between)
