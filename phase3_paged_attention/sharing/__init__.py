"""Features of the block manager and its storage: each is a class that extends the core's, in a file of its own."""

from phase3_paged_attention.sharing.block_copies import BlockCopy, SwapSpace
from phase3_paged_attention.sharing.fork import ForkingBlockManager
from phase3_paged_attention.sharing.quantized_storage import QuantizedKVStorage
from phase3_paged_attention.sharing.recording import BlockJournal, CacheStats, RecordingBlockManager, recorded
from phase3_paged_attention.sharing.sliding_window import WindowedBlockManager, widest_window
from phase3_paged_attention.sharing.swap import SwappingBlockManager
