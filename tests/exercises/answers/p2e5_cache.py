KEYS, VALUES = "self.keys[layer, start:end] = k", "self.values[layer, start:end] = v"
PAIR = "self.keys[layer, :end], self.values[layer, :end]"
RIGHT = [
    {PAIR: f"torch.stack(({PAIR}))"},
    # One counter will do, if only the last layer moves it.
    {
        "start = self.lengths[layer]": "start = self.lengths[0]",
        "self.lengths[layer] = end": "self.lengths[0] += len(k) * (layer == len(self.keys) - 1)",
    },
]
WRONG = {
    "cache-wrong-type": {", self.values[layer, :end]": ""},
    "cache-borrows-memory": [
        {  # keeps the very tensors that it was given
            KEYS: "self.lists = getattr(self, 'lists', {})",
            VALUES: f"self.lists.setdefault(layer, []).append({pair})",
            f"return {PAIR}": "return tuple(map(torch.cat, zip(*self.lists[layer])))",
        }
        for pair in ("(k, v)", "(k.clone(), v)", "(k, v.clone())")
    ],
    "cache-half-stored": {  # stores what fits
        "raise Value": "self.append(layer, *(new[: self.keys.shape[1] - start] for new in (k, v)))\n            raise Value"
    },
}
