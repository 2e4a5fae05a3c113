START, END = '"<|im_start|>"', '"<|im_end|>"'
RIGHT = {f'{mark}, "all"': f"{mark}, {{{mark}}}" for mark in (START, END)}  # each mark is trusted by itself
