"""Text as it appears: a story told token by token, wrapped at the width of the terminal."""

from collections.abc import Callable

from phase1_tokens_embeddings.tokens import BPETokenizer, StreamDecoder
from phase2_attention_kvcache.model import Generation, SamplingParams, Transformer, generate_cached
from phase2_attention_kvcache.model.generation import sampled


def tell(
    model: Transformer, tok: BPETokenizer, prompt: str, params: SamplingParams, show: Callable[[str], None]
) -> Generation:
    """Continue a prompt; hand each piece of text to `show` as it becomes certain.

    Raises:
        ValueError: `params.stop` is set: stop strings need the engine of Phase 4, which looks for them in
            the text. Everything else in `params` is honoured, but `n`, which is one here.
    """
    if params.stop:
        raise ValueError(f"stop strings ({params.stop[0]!r}) are not watched for here: use stop_token_ids")
    ids = tok.encode(prompt) or [tok.eos_token_id or 0]
    stream = StreamDecoder(tok, skip_special_tokens=True, continues=True)
    ends = model.config.eos_token_ids
    result = generate_cached(
        model,
        ids,
        params.max_tokens or 1,
        sampled(params, ids, ends),
        stop_ids={*params.stop_token_ids, *(() if params.ignore_eos else ends)},
        on_token=lambda token: show(stream.push(token)),
    )
    show(stream.finish())
    return result


class WordWrap:
    """Prints pieces of text as they come, and breaks lines between words."""

    def __init__(self, write: Callable[[str], None], width: int) -> None:
        self._write, self._width, self._column = write, width, 0

    def __call__(self, piece: str) -> None:
        for part in piece.splitlines(keepends=True):
            if self._column + len(part.rstrip()) > self._width and part.startswith(" "):
                self._write("\n")
                part, self._column = part.lstrip(" "), 0
            self._write(part)
            self._column = 0 if part.endswith("\n") else self._column + len(part)
