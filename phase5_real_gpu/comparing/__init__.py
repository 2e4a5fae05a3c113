"""Why is my number different? Two machines side by side, and the causes that leave a trace."""

from phase5_real_gpu.comparing.causes import CAUSES, find_causes
from phase5_real_gpu.comparing.comparison import compare, imagine
