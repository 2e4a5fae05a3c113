"""Load one rank's part of a checkpoint. Only the rows and columns that this rank holds are read from the files."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from labkit.foreign import visible
from phase1_tokens_embeddings.weights.safetensors_file import open_tensors
from phase2_attention_kvcache.model import ModelConfig, Transformer, checkpoint
from phase2_attention_kvcache.model.config import find_reader, read_config
from phase5_real_gpu.parallel.collectives import Collectives
from phase5_real_gpu.parallel.placement import columns_of_rank, rows_of_rank, shift
from phase5_real_gpu.parallel.sharded_model import ShardedTransformer


def open_checkpoint(folder: Path) -> tuple[ModelConfig, dict[str, checkpoint.Stored]]:
    """The shape of a model and the headers of its files, checked against each other. No weight is read.

    Raises:
        ValueError: it cannot be split, or its files do not match.
    """
    if find_reader(folder) is not None:
        raise ValueError(
            f"{visible(folder)} is quantized: only checkpoints in 16 or 32 bits can be split over devices"
        )
    config, stored = read_config(folder), checkpoint.read_headers(folder)
    checkpoint.fit_model(Transformer, config, folder, {name: s.entry for name, s in stored.items()})
    return config, stored


def load_shard(
    folder: Path, dtype: torch.dtype, device: str, collectives: Collectives
) -> tuple[ShardedTransformer, int]:
    """A rank's part of the model in a folder, and the bytes of weights that it read.

    Raises:
        ValueError: as `open_checkpoint`.
    """
    config, stored = open_checkpoint(folder)
    place = collectives.place
    first_layer = place.layers(config.num_layers).start
    with torch.device("meta"):  # shapes without memory
        model = ShardedTransformer(config, collectives)
    state, num_bytes = {}, 0
    with ExitStack() as stack:
        files = {s.file: stack.enter_context(open_tensors(s.file)) for s in stored.values()}
        for ours, shaped in model.state_dict().items():
            whole_name = name_in_whole(ours, first_layer)
            pieces = [stored[name] for name in checkpoint.names_for(config, whole_name)]
            turned = checkpoint.is_turned(config, whole_name)
            rows = rows_of_rank(config, whole_name, place)
            columns = columns_of_rank(config, whole_name, place)
            parts = [
                read_part(files[piece.file].get_slice(piece.name), piece_rows, columns, turned)
                for piece, piece_rows in rows_of_pieces(pieces, rows, turned)
            ]
            num_bytes += sum(part.nbytes for part in parts)
            whole = torch.cat(parts).to(device, dtype)
            # The last rank's share of the vocabulary may be shorter: it is padded with zeros.
            state[ours] = pad_rows(whole, len(shaped)).contiguous()
    model.load_state_dict(state, assign=True)
    return checkpoint.finish_loading(model), num_bytes


def name_in_whole(ours: str, first_layer: int) -> str:
    """The name of a stage's tensor in the checkpoint. A stage counts its layers from 0."""
    head, *rest = ours.split(".")
    if head != "blocks":
        return ours
    layer, *inside = rest
    return ".".join([head, str(first_layer + int(layer)), *inside])


def rows_of_pieces(
    pieces: Sequence[checkpoint.Stored], rows: list[range] | None, turned: bool
) -> list[tuple[checkpoint.Stored, range | None]]:
    """A tensor of ours may consist of several tensors of the file, one below the other: the rows of each that are needed."""
    if rows is None:
        return [(piece, None) for piece in pieces]
    found, first = [], 0
    for piece in pieces:
        size = piece.entry.shape[-1 if turned else 0]
        found += [(piece, shift(part, -first)) for part in rows if first <= part.start < first + size]
        first += size
    return found


def read_part(stored, rows: range | None, columns: range | None, turned: bool) -> Tensor:
    """Rows and columns of a matrix [out, in], or rows of a vector. `turned`: the file stores matrices as [in, out]."""
    cuts = [slice(None) if part is None else slice(part.start, part.stop) for part in (rows, columns)]
    if len(stored.get_shape()) == 1:
        return stored[cuts[0]]
    return stored[cuts[1], cuts[0]].t() if turned else stored[cuts[0], cuts[1]]


def pad_rows(x: Tensor, num_rows: int) -> Tensor:
    return x if len(x) == num_rows else torch.cat([x, x.new_zeros(num_rows - len(x), *x.shape[1:])])
