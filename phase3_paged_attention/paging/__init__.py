"""Virtual memory for the KV cache: blocks, block tables, and attention over them."""

from phase3_paged_attention.paging.block_allocator import BlockAllocator, PhysicalBlock
from phase3_paged_attention.paging.block_manager import BlockManager
from phase3_paged_attention.paging.block_table import BlockTable, hash_block
from phase3_paged_attention.paging.cpu_decode import compiled_kernel, switch_off_compiled_kernel
from phase3_paged_attention.paging.kv_storage import KVStorage
from phase3_paged_attention.paging.paged_attention import paged_attention_loops, paged_attention_vectorised
from phase3_paged_attention.paging.paged_kv_cache import PagedCache, PagedKVCache, StepLayout, pad_tables
