import torch


def rotate_half(x, positions, theta=10_000.0):
    """As the transformers library writes it: x cos + (-b, a) sin."""
    d = x.shape[-1]
    speeds = 1.0 / theta ** (torch.arange(0, d, 2).float() / d)
    angles = torch.outer(positions.float(), speeds)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    turned = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), dim=-1)
    return (x.float() * angles.cos() + turned.float() * angles.sin()).type_as(x)


RIGHT = [rotate_half]
WRONG = {
    "rotary-angles-rounded": {
        "positions.float()": "positions.to(x.dtype)",
        "* speeds": "* speeds.to(x.dtype)",
        "].float()": "]",
    },
}
