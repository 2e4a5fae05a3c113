"""How long prompts and answers are."""

from phase3_paged_attention.traffic.patterns import MIX, PATTERNS, TrafficPattern
