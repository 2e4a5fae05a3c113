RIGHT = {
    'struct.unpack("<Q", data[:8])': 'struct.unpack_from("<Q", memoryview(data))',
    'entry["shape"], start': 'tuple(entry["shape"]), start',
}
