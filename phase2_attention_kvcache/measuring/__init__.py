"""A feature: how fast a step could be at best (`roofline.py`), and how well a model knows a text (`evaluation.py`).

It attaches nowhere: both call a `Transformer` from outside.
"""
