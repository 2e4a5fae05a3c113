"""The questions of the companion notebooks, and why the answers are what they are.

They stand here and not in the notebooks, where a reader would see them before guessing. Names in braces are
filled with figures that the notebook has worked out.
"""

from typing import NamedTuple


class Question(NamedTuple):
    """What is asked, why the answer is what it is, and the unit of both guess and answer."""

    asks: str
    why: str
    unit: str = ""


# fmt: off
QUESTIONS: dict[str, dict[str, Question]] = {
    "phase1_tokens_embeddings": {
        "tokens-of-sentence": Question("Tokens of “The goat was waiting for a boat.” with all merges",
            "Every word of it is frequent in stories, so each became one token, its space included. The full stop is one more.", "tokens"),
        "hindi": Question("Tokens of the story in Hindi, over those in English, with a vocabulary learned from English",
            "The vocabulary never saw Hindi. A letter there has three bytes, and hardly any two of them were ever merged.", "times"),
        "king-kitchen": Question("Cosine of king and kitchen",
            "Not zero: all rows share something, such as being nouns. Compare brother and sister: {siblings:.2f}."),
        "embedding-share": Question("Share of the embedding table in the files of tales",
            "A small model with 8,192 rows of 256 numbers. In a model of 8 billion parameters it is a few percent.", "%"),
        "kv-bytes": Question("Bytes of KV cache per token, Llama-3 8B",
            "2 x 32 x 8 x 128 x 2: an eighth of a megabyte, for every token of every user.", "bytes"),
        "users-on-a100": Question("Users with 8,192 tokens each on an A100 80 GB",
            "A tenth of the card is left to other things, the weights take 16 GB, each user {each:.1f} GB.", "users"),
    },
    "phase2_attention_kvcache": {
        "weights-of-dogs": Question("Weights of “dogs” in percent: on I, love and dogs",
            "17.9 : 17.9 : 10.1. One point of score, divided by 1.73, is a factor of 1.8.", "%"),
        "look-at-first": Question("Heads, of 24, in which the full stop puts more than half of its attention weight on the first token",
            "Weights must add up to 1, and a head that finds nothing has to put them somewhere. The {tokens} tokens would get {even:.2f} each, spread evenly; the most that any head gives the first one is {most:.2f}.", "heads"),
        "leading-layer": Question("The layer from which on {favourite} leads",
            "Early layers put together what the words mean here. The decision falls late."),
        "top-p": Question("Tokens that top-p 0.9 keeps, of 8,192",
            "Half of the probability lies on {half} tokens, and then the tail is long: top-p 0.99 would keep {most:,}.", "tokens"),
        "work-naive": Question("Tokens computed for 100 new ones after a prompt of 2, naive",
            "2 + 3 + ... + 101: it grows with the square of the length.", "tokens"),
        "work-cached": Question("Tokens computed for 100 new ones after a prompt of 2, with a cache",
            "2 + 99. The last token is the answer, and what follows it is not asked, so it is never computed.", "tokens"),
        "kv-bytes": Question("Bytes of KV cache per token, GPT-2 in 16 bits",
            "2 x 12 layers x 12 heads x 64 numbers x 2 bytes, for a piece of text of four or five bytes.", "bytes"),
        "intensity": Question("FLOP per byte, one token",
            "One multiplication and one addition, for 2 bytes. The ridge of this card lies at {ridge:.0f}: its arithmetic units would be idle most of the time."),
        "bits-a-weight": Question("Bits per weight, codes of 4 bits in groups of 32",
            "32 codes of 4 bits, a scale of 16 and a zero point of 8: 152 bits for 32 weights.", "bits"),
    },
    "phase3_paged_attention": {
        "waste-of-rows": Question("Percent of the slots of ten rows of 2,048 that are empty",
            "These slots stay empty while other requests wait.", "%"),
        "users-in-blocks": Question("Users with 300 tokens, in the memory of 4 rows",
            "512 blocks, 19 for each. In rows it is 4.", "users"),
        "blocks-of-alice": Question("The blocks of Alice, who has nine words now",
            "1 and 2 hold her prompt, 3 and 4 his. At her ninth word the next free block is 5."),
        "same-prompt": Question("Tokens found in the cache, of exactly the same 12",
            "The last token has to be computed, or there would be no scores to pick the next one from. Blocks are found whole, so leaving out one token leaves out four.", "tokens"),
        "shrink": Question("What the sums so far shrink to, when a score of 3 follows a largest of 1",
            "exp(1 - 3): they were measured against 1 and have to be measured against 3."),
        "ten-users": Question("Percent of the prompt tokens of ten users that were found in the cache",
            "{cached} of {prompt_tokens} tokens. The first user finds nothing, the others all full blocks of the common part.", "%"),
    },
    "phase4_scheduler": {
        "static-wait": Question("Steps that B's one token waits in a static batch",
            "It is complete after step 1 and returned after step 80.", "steps"),
        "budget": Question("alice's tokens in its first three steps",
            "Two tokens of the budget go to bob and carol in every step, which leaves 14."),
        "memory-runs-out": Question("The step in which a request is preempted",
            "alice holds 3 blocks for up to 48 tokens. Step 2 computes its 37, each later step one more: step 14 needs a block for token 49."),
        "prefix-hit": Question("Tokens of zoe's prompt that are computed",
            "{found} are found: full blocks that bob's and carol's stories began with.", "tokens"),
        "p95": Question("p95 of 90 waits of 0.2 s, 6 of 2 s and 4 of 9 s",
            "The mean is {mean:.2f} s, the median 0.2 s. The 95th value in order is one of the six.", "s"),
        "knee": Question("Chats per second at which the p95 of TTFT exceeds 1 s",
            "Below it, more load only makes steps larger. Above it, requests wait for blocks or until another one ends, and each further request delays the others.", "per second"),
        "prefix-router": Question("Cached tokens with the prefix-aware router, as a multiple of those with round robin",
            "Less than 4: under round robin the previous turn was at the same replica in one of four cases, but earlier turns help too. A third of the tokens are new and in no cache.", "times"),
    },
    "phase5_real_gpu": {
        "tokens-a-second": Question("Tokens per second, at most, for one request of Llama-3 8B on an H200, by its data sheet",
            "Each token reads {gb:.1f} GB, however fast the GPU computes.", "tokens per second"),
        "step-for-32": Question("A step for 32 requests, over a step for one: times as long, at least",
            "The weights are read once for all requests. Each request has its own keys and values: {gb:.1f} GB for 32.", "times"),
        "unwritten": Question("Places that no program wrote",
            "Three programs reach 12 places. The mask stops the last one at 10.", "places"),
        "packed-heads": Question("Bytes that rung 1 requests, over those of rung 2",
            "Four query heads share a KV head. Rung 1 fetches each key for each of them.", "times"),
        "buffers": Question("Buffers for keys, on an H100: ids loaded in the same iteration, and one iteration early",
            "With one buffer the program fetches, waits, multiplies, and fetches again. With two, the next keys are on their way while it multiplies."),
        "splits": Question("Splits for one request of 32,768 tokens on an H100",
            "49 splits x 8 heads would nearly fill the 396 resident programs; splits come in tiles of 64 tokens, and the fewest whose time is within 15% of the best win: {splits} splits of {size:,} tokens.", "splits"),
        "three-times-slower": Question("Figures of a machine three times as slow that its limits do not explain",
            "In milliseconds all look slow. As shares of that machine's floor they are unchanged.", "figures"),
    },
}
