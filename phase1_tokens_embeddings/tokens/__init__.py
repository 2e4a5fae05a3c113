"""Byte-level BPE: learning a vocabulary, the tokenizer and its files, and decoding a stream of tokens."""

from phase1_tokens_embeddings.tokens.stream_decoder import StopStrings, StreamDecoder, Tokenizer
from phase1_tokens_embeddings.tokens.tokenizer import END_OF_TEXT, BPETokenizer
