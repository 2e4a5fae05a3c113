"""Byte-level BPE: how it is learned, the tokenizer and its files, and text from tokens as they arrive."""

from phase1_tokens_embeddings.tokens.stream_decoder import StopStrings, StreamDecoder, Tokenizer
from phase1_tokens_embeddings.tokens.tokenizer import END_OF_TEXT, BPETokenizer
