"""Decode attention over blocks as compiled code for a CPU: `PagedKVCache` takes it where numba can compile it.

Empty on purpose: numba takes half a second to import, so the kernel is imported when a cache is made.
"""
