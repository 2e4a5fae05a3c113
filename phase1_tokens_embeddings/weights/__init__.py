"""What is in a model file, and how much memory that needs. (`embeddings.py` needs torch, and is not imported here.)"""

from phase1_tokens_embeddings.weights.cards import CARDS, Card, find_card
from phase1_tokens_embeddings.weights.gguf_file import read_gguf_header
from phase1_tokens_embeddings.weights.memory_math import (
    GB,
    GIB,
    bytes_for_kv,
    kv_bytes_per_token,
    kv_of_text,
    kv_per_token,
    users_that_fit,
)
from phase1_tokens_embeddings.weights.model_shapes import SHAPES, ModelShape, find_shape, read_shape
from phase1_tokens_embeddings.weights.safetensors_file import checkpoint_files, read_safetensors_header
from phase1_tokens_embeddings.weights.weight_formats import PRECISIONS, find_precision, weight_bytes
