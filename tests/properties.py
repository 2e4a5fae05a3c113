"""What property-based tests share beyond the profile that conftest.py loads."""

from hypothesis import Phase, settings

unshrunk = settings(phases=[Phase.explicit, Phase.generate])
"""For kernels: looking for a smaller example would take Triton's interpreter minutes."""
