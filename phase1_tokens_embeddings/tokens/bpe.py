"""Byte-pair encoding: learning merges from text, and turning text into token ids with them.

A computer stores text as bytes. A model could read bytes one at a time, but a page would then be
thousands of steps long. Byte-pair encoding (BPE) shortens it: find the pair of neighbours that occurs
most often, give it an id of its own, and repeat.

A small worked example, three merges on the text "low low lower":

    start            l o w | _ l o w | _ l o w e r        ("_" stands for the space)
    merge l+o        lo w  | _ lo w  | _ lo w e r          "l o" occurs 3 times
    merge lo+w       low   | _ low   | _ low e r           "lo w" occurs 3 times
    merge _+low      low   | _low    | _low e r            "_ low" occurs twice

The list of merges, in the order they were learned, *is* the tokenizer. Encoding replays it.

Sources: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units"
(2016), section 3.2; Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2,
2019), section 2.2, for bytes instead of characters and for the split pattern.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import regex

from labkit.foreign import quoted

Pair = tuple[int, int]

# GPT-2 first cuts text into pieces, and merges never cross a cut. So "dog" and "dog." share the token
# for "dog". In order: English endings ('s, 'll, ...), letters, digits, other signs (each with one
# leading space), and white space. The space *before* a word belongs to it: " dog" is one token.
# The Unicode tables of the `regex` module define letters (\p{L}) and digits (\p{N}). They may be newer than the
# tables inside tiktoken or `tokenizers`, so a character that is new in Unicode can be cut differently there and
# get other ids. Decoding gives the same text in both cases.
GPT2_SPLIT_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPLIT_PATTERNS = {"gpt-2": GPT2_SPLIT_PATTERN, "llama-bpe": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", "")}
"""The split patterns of files that are read here. Files with another one are left to the library `tokenizers`."""


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Split texts into words as GPT-2 does, and count the words.

    Training then works on distinct words, not on the text: "the" is processed once, with its count of
    100,000. This alone makes training hundreds of times faster.
    """
    split = regex.compile(GPT2_SPLIT_PATTERN)
    words: Counter[str] = Counter()
    for text in texts:
        words.update(split_words(split, without_lone_surrogates(text)))
    return words


def split_words(split: regex.Pattern[str], text: str) -> list[str]:
    """Split text into the matches of a split pattern. The matches, joined, give the text again.

    Raises:
        ValueError: the pattern does not match a part of the text.
    """
    words = split.findall(text)
    if "".join(words) != text:
        raise ValueError(f"the split pattern {quoted(split.pattern)} must match every character")
    return words


def without_lone_surrogates(text: str) -> str:
    """Replace halves of UTF-16 pairs by U+FFFD. They are not characters and have no UTF-8 bytes.

    Python strings can hold them, for instance after `json.loads('"\\ud83d"')`. Two adjacent
    halves become the character that they encode. tiktoken does the same.
    """
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def learn_merges(
    words: Counter[str], num_merges: int, on_merge: Callable[[int, Pair, int], None] | None = None
) -> list[Pair]:
    """Learn up to `num_merges` merges from counted words.

    Ids 0..255 are the bytes themselves; merge number i creates id 256 + i. Among equally
    frequent pairs the smaller one is merged, so that the same text always gives the same tokenizer.

    `on_merge(i, pair, count)` is called after each merge. Stops early when nothing is left to merge.

    The counts are updated, not counted anew: a merge changes only the words that
    contain the pair, and in these words only the neighbours of the pair.
    """
    sequences = [list(word.encode("utf-8")) for word in words]
    weights = list(words.values())

    # 1. Count every pair once, and remember which words hold it.
    counts: dict[Pair, int] = defaultdict(int)
    where: dict[Pair, set[int]] = defaultdict(set)
    for index, ids in enumerate(sequences):
        for pair in pairwise(ids):
            counts[pair] += weights[index]
            where[pair].add(index)

    # 2. A heap finds the most frequent pair. Entries are never updated in place: a changed count
    #    is pushed as a new entry, and an outdated entry is dropped when it is popped.
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)

    merges: list[Pair] = []
    while heap and len(merges) < num_merges:
        negative_count, pair = heapq.heappop(heap)
        count = -negative_count
        if counts.get(pair, 0) != count:
            continue  # stale
        if count < 1:
            break
        new_id = 256 + len(merges)
        merges.append(pair)

        # 3. Rewrite the words that hold the pair, and note how the counts of their pairs change.
        change: dict[Pair, int] = defaultdict(int)
        for index in where.pop(pair):
            old = sequences[index]
            new = merge_pair(old, pair, new_id)
            weight = weights[index]
            for gone in pairwise(old):
                change[gone] -= weight
            for come in pairwise(new):
                change[come] += weight
                where[come].add(index)
            sequences[index] = new
        where.pop(pair, None)
        for changed, delta in change.items():
            if delta:
                counts[changed] += delta
                if counts[changed] > 0:
                    heapq.heappush(heap, (-counts[changed], changed))
                else:
                    del counts[changed]
        if on_merge:
            on_merge(len(merges) - 1, pair, count)
    return merges


def merge_pair(ids: Sequence[int], pair: Pair, new_id: int) -> list[int]:
    """Replace each occurrence of `pair`, from the left, by `new_id`.

    >>> merge_pair([1, 2, 3, 1, 2], (1, 2), 9)
    [9, 3, 9]
    """
    merged: list[int] = []
    i = 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            merged.append(new_id)
            i += 2
        else:
            merged.append(ids[i])
            i += 1
    return merged


def apply_merges(ids: Sequence[int], merges: dict[Pair, tuple[int, int]]) -> list[int]:
    """Encode one word: apply the learned merges in the order they were learned.

    `merges` maps a pair to (rank, new id); a low rank was learned early. The simplest method, "find the
    pair with the lowest rank, merge it, repeat", takes n passes over a word of n bytes: a file
    of 100,000 letters "a" would take minutes. Here the word is a linked list, and a heap holds the
    possible merges by rank, so encoding takes O(n log n) steps.
    """
    n = len(ids)
    token = list(ids)
    left = list(range(-1, n - 1))  # left[i]: index of the token before i, -1 at the start
    right = list(range(1, n + 1))  # right[i]: index of the token after i, n at the end

    heap = []  # (rank, index of the left token, left id, right id)
    for i in range(n - 1):
        if (found := merges.get((token[i], token[i + 1]))) is not None:
            heap.append((found[0], i, token[i], token[i + 1]))
    heapq.heapify(heap)

    while heap:
        _, i, a, b = heapq.heappop(heap)
        j = right[i]
        if token[i] != a or j >= n or token[j] != b:
            continue  # a neighbour was merged away in the meantime
        token[i] = merges[a, b][1]  # i takes the merged token
        token[j] = -1  # j is gone
        right[i] = right[j]
        if right[i] < n:
            left[right[i]] = i
        for start in (left[i], i):  # the two new neighbourhoods
            end = right[start] if start >= 0 else n
            if end < n and (found := merges.get((token[start], token[end]))) is not None:
                heapq.heappush(heap, (found[0], start, token[start], token[end]))
    return [t for t in token if t >= 0]
