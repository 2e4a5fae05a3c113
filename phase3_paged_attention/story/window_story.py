"""The chapter on sliding windows: how many blocks a text holds when no token looks back further than that."""

from matplotlib.figure import Figure

from labkit.figures import BLUE, GREY, ORANGE, new_figure, plain_numbers
from labkit.lab import Lab
from phase1_tokens_embeddings.weights import CARDS, SHAPES, kv_of_text, kv_per_token
from phase3_paged_attention.paging import BlockManager, BlockTable
from phase3_paged_attention.sharing import WindowedBlockManager

BLOCK, WINDOW, CONTEXT, PROMPT = 16, 4096, 32_768, 16_384  # Mistral 7B looks back 4,096 tokens
CHUNK = 2048  # tokens of a prompt that a step computes


def blocks_held(window: int | None) -> dict[int, int]:
    """By the tokens of a text, the blocks that it holds. First its prompt is computed in chunks, then one token per step."""
    size = dict(num_blocks=CONTEXT // BLOCK + 1, block_size=BLOCK, enable_prefix_caching=False)
    if window is None:
        manager = BlockManager(**size)
    else:
        manager = WindowedBlockManager(**size, sliding_window=window, max_new_tokens=CHUNK)
    text, table, held = range(CONTEXT), BlockTable(), {}
    for num_tokens in [*range(CHUNK, PROMPT, CHUNK), *range(PROMPT, CONTEXT + 1)]:
        assert manager.allocate(table, text, num_tokens)
        held[num_tokens] = manager.num_blocks - 1 - manager.num_free_blocks
    return held


def windows(lab: Lab) -> dict[str, dict[int, int]]:
    """What is held without and with a window, see `blocks_held`."""
    lab.title("A model that attends only to its window")
    shape = SHAPES["mistral-7b"]
    gib = BLOCK * kv_per_token(shape) / 2**30
    lab.say(f"""Paging wastes little, and yet a text's memory grows with every token. Some models bound it: in Mistral
        7B's first version a token sees itself and the {WINDOW - 1:,} before it, in every layer. That is a sliding window. What
        lies before it is never read again. So the block manager gives such blocks back while the text still grows,
        and in the table the null block takes their places. The text here has {CONTEXT:,} tokens.""")
    held = {"no window": blocks_held(None), f"window of {WINDOW:,}": blocks_held(WINDOW)}
    without, within = held.values()
    lab.predict(
        claim="window-8x",
        question=f"blocks of {BLOCK} that the whole text holds: without a window, divided by with one",
        predicted=CONTEXT / WINDOW,
        measured=round(without[CONTEXT] / within[CONTEXT], 2),
        tolerance=0.01,
        note=f"{without[CONTEXT]:,} / {within[CONTEXT]}. At most lengths it is {within[CONTEXT - 1]}: a window seldom begins where a "
        "block does.",
    )
    lab.predict(
        claim="window-prefill",
        question=f"most blocks held at any time with the window, if the prompt comes in chunks of {CHUNK:,} tokens",
        predicted=(WINDOW + CHUNK) // BLOCK,
        measured=max(within.values()),
        note="While a chunk is computed, its first token attends to a whole window, and its last one needs room too.",
    )
    dollars = CARDS["a100-80"].dollars_per_hour
    shown = (4096, 8192, 16_384, CONTEXT)
    lab.table(
        f"Blocks that a text holds ({1024 * gib:.0f} MiB each: Mistral 7B, 16 bits)",
        ["tokens", *held, "GiB without", "GiB with"],
        [[n, without[n], within[n], without[n] * gib, within[n] * gib] for n in shown],
        note=f"Up to {PROMPT:,} tokens in the step that reads a chunk. At {CONTEXT:,}, 40 GiB of an A100 at {dollars:.2f} dollars per hour hold {40 / (without[CONTEXT] * gib):.0f} "
        f"such texts, or {40 / (within[CONTEXT] * gib):.0f}.",
    )
    gemma = SHAPES["gemma-3-1b"]
    lab.say(f"""This needs a window in every layer. Gemma 2 and 3 have local and global layers in turn, and a global one
        sees everything. Here a block belongs to all layers at once, so such models keep all blocks: {gemma.name} holds
        {CONTEXT * kv_per_token(gemma) / 2**20:,.0f} MiB of a text of {CONTEXT:,} tokens, and needs {kv_of_text(gemma, CONTEXT) / 2**20:,.0f}. vLLM puts layers of a
        kind into groups, each with its own tables, and frees the blocks of the local groups.""")
    return held


def draw_windows(held: dict[str, dict[int, int]]) -> Figure:
    fig, [ax] = new_figure(
        "With a window in every layer, the number of blocks stops growing",
        f"Blocks of {BLOCK} that one text holds, counted with the block manager. Prompt of {PROMPT:,} tokens in chunks of {CHUNK:,}",
        size=(7.2, 4.6),
    )
    for color, (name, by) in zip((ORANGE, BLUE), held.items()):
        ax.plot([*by], [*by.values()], color=color, label=name)
    ax.axvline(PROMPT, color=GREY, linestyle="--", linewidth=1.2)
    ax.text(
        PROMPT * 1.02, max(map(max, map(dict.values, held.values()))) * 0.97, "the answer begins", va="top"
    )
    ax.set(xlabel="tokens of the request so far", ylabel="blocks held", xlim=(0, CONTEXT), ylim=(0, None))
    plain_numbers(ax)
    ax.legend(loc="upper left")
    return fig
