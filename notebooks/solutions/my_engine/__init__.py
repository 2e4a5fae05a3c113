"""An inference engine of one's own: text in, text out, for many users at a time.

In reading order: `tokenizer`, `model`, `cache`, `blocks`, `scheduler`, `engine`. `lab mine` runs it; its parts are answers
to exercises.
"""
