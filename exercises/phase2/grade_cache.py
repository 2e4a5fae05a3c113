"""Grader of the cache: what was appended must come back, layer by layer, and nothing else."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from exercises.grading import Diagnoses, Exercise, NotYet, call, expect_equal, guard, look, same

SAYS = Diagnoses.of("p2e5_cache")


class RightCache:
    """What a cache holds, in lists: no places, no room, nothing to overwrite."""

    def __init__(self, num_layers: int, room: int) -> None:
        self.room = room
        self.keys: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self.values: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.keys[layer]) + len(k) > self.room:
            raise ValueError("full")
        self.keys[layer] += k.clone().unbind(0)
        self.values[layer] += v.clone().unbind(0)
        return torch.stack(self.keys[layer]), torch.stack(self.values[layer])


# A step: how many new tokens; every layer gets them, one after the other.
RUNS = {
    "a prompt of 3 tokens, one layer": (1, 8, [3]),
    "a prompt of 3 tokens, then one more, one layer": (1, 8, [3, 1]),
    "a prompt of 3 tokens, two layers": (2, 8, [3]),
    "a prompt of 3 tokens, then two more, three layers": (3, 8, [3, 1, 1]),
    "chunks of 4, 4 and 2 tokens, filling the room to the last place": (2, 10, [4, 4, 2]),
}


def _new(right: RightCache, layer: int, n: int) -> tuple[Tensor, Tensor]:
    """The next tokens of a layer. Their numbers tell where they belong: the key of token 3 in layer 0 is 103, 103.01, ..."""
    token = 100.0 * (layer + 1) + len(right.keys[layer]) + torch.arange(n)
    k = token[:, None, None] + torch.tensor([[0.0, 0.01, 0.02, 0.03], [0.1, 0.11, 0.12, 0.13]])
    return k, -k


def _brief(pair: Any) -> Any:
    """Keys and values by the first number of each token, which is enough to see who stands where."""
    try:
        keys, values = (tensor[:, 0, 0].tolist() for tensor in pair)
    except Exception:
        return pair
    rows = (", ".join(f"{number:g}" for number in numbers) for numbers in (keys, values))
    text = "keys    {}\nvalues  {}".format(*rows)
    return text + "\n(nan: never written)" if "nan" in text else text


def _pair(got: Any) -> Any:
    """Keys and values in one tensor are as good as two: taken apart they are the same."""
    return tuple(got) if isinstance(got, Tensor) and got.ndim == 4 and len(got) == 2 else got


def grade_cache(cache_class: Callable) -> None:
    with _empty_is_nan():
        for name, (layers, room, steps) in RUNS.items():
            _grade_run(cache_class, name, layers, room, steps)
        _grade_full(cache_class)
        _grade_own_memory(cache_class)


@contextlib.contextmanager
def _empty_is_nan() -> Iterator[None]:
    """Memory that was never written holds what was there before: by chance the right numbers. Make it NaN."""
    plain = torch.empty

    def empty(*size: Any, **how: Any) -> Tensor:
        out = plain(*size, **how)
        return out.fill_(torch.nan) if out.is_floating_point() else out

    torch.empty = empty
    try:
        yield
    finally:
        torch.empty = plain


def _grade_run(cache_class: Callable, name: str, layers: int, room: int, steps: Sequence[int]) -> None:
    cache, right = guard(cache_class, layers, room, 2, 4, tried="Cache(...)"), RightCache(layers, room)
    for number, n in enumerate(steps):
        for layer in range(layers):
            k, v = _new(right, layer, n)
            tried = f"{name}: step {number + 1} of {len(steps)}, layer {layer}.\nBelow stands the first number of each token"
            try:
                got = _pair(guard(cache.append, layer, k.clone(), v.clone(), tried=tried))
            except NotYet as no:
                if no.diagnosis != "raises":
                    raise
                if number == 0 and layer:
                    raise SAYS.no("cache-one-counter-for-all-layers", tried, no.says, n) from None
                if "ValueError" in no.says:
                    tokens = len(right.keys[layer]) + n
                    early = "cache-full-too-early" + " (the last)" * (tokens == room)
                    raise SAYS.no(early, tried, no.says, f"{tokens} tokens, with room for {room}") from None
                raise
            want = right.append(layer, k, v)
            if not same(got, want):
                _say_what_is_wrong(cache, right, got, want, layer, k, v, tried)


def _say_what_is_wrong(
    cache: Any,
    right: RightCache,
    got: Any,
    want: tuple[Tensor, Tensor],
    layer: int,
    k: Tensor,
    v: Tensor,
    tried: str,
) -> None:
    """Raise NotYet with what fits best to keys and values that are not `want`."""

    def no(diagnosis: str) -> NotYet:
        return SAYS.no(diagnosis, tried, _brief(got), _brief(want))

    if not (isinstance(got, (tuple, list)) and len(got) == 2 and all(isinstance(t, Tensor) for t in got)):
        if got is None:
            raise NotYet("returns-nothing", "None came back. Is a `return` missing?", tried, None, want)
        raise SAYS.no("cache-wrong-type", tried, got, _brief(want))
    keys, values = got
    total, new = len(want[0]), len(k)
    old = total - new
    if same((values, keys), want):
        raise no("cache-exchanged")
    if keys.shape[1:] != k.shape[1:]:
        expect_equal(got, want, tried)  # the shapes say it
    if old and same((keys, values), (k, v)):
        if _length_of(cache, layer) == total:
            raise no("cache-only-the-new")
        raise no("cache-length-not-updated")
    if len(keys) == right.room != total:
        raise no("cache-returns-its-room")
    if layer and len(keys) > total:
        raise no("cache-one-counter-for-all-layers")
    if old and same((keys, values), (want[0][:old], want[1][:old])):
        raise no("cache-new-missing")
    others = [keys for keys in right.keys if old and keys is not right.keys[layer]]
    if any(same(keys[:old], torch.stack(other[:old])) for other in others):
        raise no("cache-layers-mixed")
    if len(keys) == total - 1 and same(keys, want[0][:-1]):
        raise no("cache-last-missing")
    if old and len(keys) == total:
        if same(torch.cat([keys[new:], keys[:new]]), want[0]):
            raise no("cache-new-in-front")
        if same(keys[:new], k):
            raise no("cache-overwrites")
        if same((keys[:old], values[:old]), (want[0][:old], want[1][:old])):
            raise no("cache-new-in-the-wrong-place")
    if len(keys) == total and same(keys, want[0]):
        raise no("cache-values-wrong")
    if len(keys) == total and same(values, want[1]):
        raise no("cache-keys-wrong")
    if old and len(keys) < total:
        raise no("cache-length-not-updated (some)")
    expect_equal(got, want, tried)


def _length_of(cache: Any, layer: int) -> Any:
    """What the cache itself notes as the length of a layer, if it does so as in the stub."""
    try:
        return look(cache, "lengths")[layer]
    except Exception:
        return None


def _grade_full(cache_class: Callable) -> None:
    cache, right = call(cache_class, 1, 4, 2, 4), RightCache(1, 4)
    k, v = _new(right, 0, 3)
    call(cache.append, 0, k, v)
    right.append(0, k, v)
    more_k, more_v = (x + 50 for x in _new(right, 0, 2))
    tried = "room for 4 tokens, 3 are stored, 2 more arrive"
    try:
        got: Any = call(cache.append, 0, more_k, more_v)
    except ValueError:
        pass
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise SAYS.no("cache-full-unnoticed (another error)", tried, got, "a ValueError") from None
    else:
        raise SAYS.no("cache-full-unnoticed", tried, _brief(got), "a ValueError")
    k, v = _new(right, 0, 1)
    want = right.append(0, k, v)
    try:
        got = _pair(guard(cache.append, 0, k, v, tried=tried))
    except NotYet as no:
        got = str(no.says)
    if not same(got, want):
        tried += ": a ValueError, as it should be. Then 1 token arrives"
        raise SAYS.no("cache-half-stored", tried, _brief(got), _brief(want))


def _grade_own_memory(cache_class: Callable) -> None:
    """The caller goes on using its tensors."""
    cache, right = call(cache_class, 1, 8, 2, 4), RightCache(1, 8)
    k, v = _new(right, 0, 2)
    right.append(0, k, v)
    call(cache.append, 0, k, v)
    k.zero_()
    v.zero_()
    k, v = _new(right, 0, 1)
    got, want = _pair(call(cache.append, 0, k, v)), right.append(0, k, v)
    if not same(got, want):
        tried = "append of 2 tokens; the tensors given are then set to 0; append of 1 token"
        raise SAYS.no("cache-borrows-memory", tried, _brief(got), _brief(want))


EXERCISES = [
    Exercise("p2e5_cache", ("Cache",), grade_cache),
]
