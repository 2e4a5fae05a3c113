"""Continuous batching: many users share every step of one model."""

from phase4_scheduler.engine import EngineConfig, LLMEngine

__all__ = ["EngineConfig", "LLMEngine"]
