"""Puts an engine together: parts of your own or the core's, a runner for the device, and the features that are asked for."""

from phase4_scheduler.assembly.build import (
    build_core,
    load_engine,
    load_model,
    load_tokenizer,
    split_settings,
)
from phase4_scheduler.assembly.feature import Feature, find_features
