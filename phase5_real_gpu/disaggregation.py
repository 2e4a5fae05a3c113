"""Prefill apart from decode: who moves what, what it costs, and whether it is worth it.

A prompt takes a long step, and each request whose answer is being written waits for it. Chunks make the waiting shorter. Two
engines end it: one computes prompts, the other writes answers, and between them go keys and values.

You will see both on `tales`: the tokens are those of one engine, each byte is counted, what the decode side has cached is not
sent. In the end a map says who wins for which traffic and which SLO.

Source: Zhong et al., "DistServe: Disaggregating Prefill and Decoding" (2024); vLLM's NixlConnector for the protocol.
"""

from labkit.lab import Lab, run_lab
from phase5_real_gpu.story.disaggregation_story import hand_over, the_map


def story(lab: Lab) -> None:
    hand_over(lab)
    the_map(lab)


def main(argv: list[str] | None = None) -> int:
    return run_lab(story, __doc__, ("seed",), argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
