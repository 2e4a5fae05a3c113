# As the transformers library writes it: x cos + (-b, a) sin.
BOTH = (
    "torch.cat((a, b), -1) * torch.cat((cos, cos), -1) + torch.cat((-b, a), -1) * torch.cat((sin, sin), -1)"
)
RIGHT = {"torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)": f"({BOTH})"}
WRONG = {
    "rotary-angles-rounded": {
        "positions.float()": "positions.to(x.dtype)",
        "* speeds": "* speeds.to(x.dtype)",
        "].float()": "]",
    }
}
