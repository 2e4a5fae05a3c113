"""What attaches to the core of this phase (`engine/`)."""

import labkit  # before torch: it says how threads wait

ASSEMBLY: str | None = "phase4_scheduler.assembly"
"""The module that puts engines together, by `build_core` and `load_engine`. None: an engine is its core."""
