RIGHT = {
    'struct.unpack("<Q", data[:8])': 'struct.unpack_from("<Q", memoryview(data))',
    'entry["shape"], start': 'tuple(entry["shape"]), start',
}
WRONG = {
    # Bytes read the wrong way round would explain this case, and spoil the cases that are right here.
    "raises": {"    return tensors": "    if not tensors:\n        raise ValueError\n    return tensors"},
    "header-metadata-is-no-tensor": {  # its text passes as a tensor
        "continue": 'entry = {"dtype": None, "shape": [], "data_offsets": (0, 0)} | entry'
    },
}
