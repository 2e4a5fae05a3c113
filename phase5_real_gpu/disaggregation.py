"""Prefill and decode in separate engines: which blocks move, what that costs, and when it serves more requests.

A long prompt makes a long step, and every request that decodes in the same step waits for it. Chunked prefill shortens the wait. Two
engines remove it: one computes prompts, the other generates tokens, and keys and values are copied between them.

You will see this on `tales`: the tokens are those of one engine, and each byte is counted; blocks that the decode side has cached are
not sent. At the end a map shows which of the two serves more requests, for three kinds of traffic and three SLOs.

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
