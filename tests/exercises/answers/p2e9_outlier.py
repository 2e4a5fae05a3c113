RIGHT = {
    "int(largest.bincount().argmax())": "largest.bincount().argmax()",
    "(rest / scales.clamp(min=1e-30))": "torch.where(scales > 0, rest / scales, 0)",
}
