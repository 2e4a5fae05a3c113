RIGHT = {"torch.stack(outputs, dim=1)": "torch.stack(outputs).transpose(0, 1)"}
WRONG = {"changes-its-input": {"    group = ": "    q, k = q * 2, k.div_(2)\n    group = "}}
