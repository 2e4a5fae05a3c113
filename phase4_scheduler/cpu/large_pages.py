"""Weights in memory pages of 2 MB instead of 4 KB, and freed memory that the process keeps.

A step reads them from end to end. In small pages a processor looks up an address every 4 KB, and what it fetches ahead ends there.
(Keys and values stay in small pages: the system would clear 2 MB for the first token in each.)
"""

import ctypes
import sys

PAGE = 2 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of glibc, see `man mallopt`
MADV_COLLAPSE = 25  # Linux 6.1: copy this memory into a large page now. Where it is refused, nothing changes.


def collapse_pages(address: int, nbytes: int) -> None:
    """Move memory into large pages, with what else lies in the first and the last of them."""
    if sys.platform == "linux":
        madvise = ctypes.CDLL(None).madvise
        for page in range(address // PAGE * PAGE, address + nbytes, PAGE):
            madvise(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), MADV_COLLAPSE)


def keep_freed_memory() -> None:
    """Let the next step take what this one frees: up to 256 MB, and arrays of up to 32 MB.

    glibc gives large arrays back to the system when they are freed. The next step then takes them page by page, and the system
    clears each page: for 16 users and 8,192 tokens 300 to 500 pages, up to 0.6 ms of a step of 4.7 ms.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
