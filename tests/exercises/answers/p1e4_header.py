RIGHT = {
    'struct.unpack("<Q", data[:8])': 'struct.unpack_from("<Q", memoryview(data))',
    'entry["shape"], start': 'tuple(entry["shape"]), start',
}
# Bytes read the wrong way round would explain this case, and spoil the cases that are right here.
WRONG = {
    "raises": {"    return tensors": "    if not tensors:\n        raise ValueError\n    return tensors"}
}
