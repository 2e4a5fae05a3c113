RIGHT = {
    "low | high << 4": "(low.int() + 16 * high.int()).to(torch.uint8)",
    "packed & 15, packed >> 4": "packed.remainder(16), packed // 16",
}
WRONG = {"pack-not-bytes": {"low | high << 4": "low.int() | high.int() << 4"}}
