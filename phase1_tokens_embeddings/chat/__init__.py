"""A feature: a conversation becomes one text by the chat template of a model, run in a bounded sandbox.

It attaches nowhere: a caller renders its messages and hands the text to a tokenizer.
"""

from phase1_tokens_embeddings.chat.chat_settings import chat_settings_of_folder, chat_settings_of_gguf
from phase1_tokens_embeddings.chat.chat_template import ChatTemplate
