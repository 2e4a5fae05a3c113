"""Weights in memory pages of 2 MB instead of 4 KB.

A step reads them from end to end. In small pages a processor looks up an address every 4 KB, and what it fetches ahead ends there.
(Keys and values stay in small pages: the system would clear 2 MB for the first token in each.)
"""

import ctypes
import sys

PAGE = 2 << 20
MADV_COLLAPSE = 25  # Linux 6.1: copy this memory into a large page now. Where it is refused, nothing changes.


def collapse_pages(address: int, nbytes: int) -> None:
    """Move memory into large pages, with what else lies in the first and the last of them."""
    if sys.platform == "linux":
        madvise = ctypes.CDLL(None).madvise
        for page in range(address // PAGE * PAGE, address + nbytes, PAGE):
            madvise(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), MADV_COLLAPSE)
