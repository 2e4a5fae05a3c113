"""Every decision of the real vLLM 0.32 with speculative decoding on 120 recorded workloads, field by field, step by step."""

from pathlib import Path

from phase4_scheduler.features.speculation import SpeculativeConfig, SpeculativeScheduler
from phase4_scheduler.features.speculation.proposers import Drafts
from tests.phase4_scheduler.engine.recordings import Replay, TakesAnything, equal_steps


class Replayed(TakesAnything, SpeculativeScheduler):
    pass


class SpeculativeReplay(Replay):
    def make_scheduler(self, config):
        c = self.config
        model = "tales-draft" if c["method"] == "draft_model" else None
        speculation = SpeculativeConfig(c["num_speculative_tokens"], c["method"], model=model)
        assert speculation.num_draft_slots == c["draft_slots"] == (c["lookahead"] > 0)
        return Replayed(config, self.manager, speculative_config=speculation)

    def decided(self, scheduled):
        spec = {name: s.drafts.token_ids for name, s in scheduled.items() if s.drafts.token_ids}
        return super().decided(scheduled) | {"spec": spec}

    def sample(self, s):
        i, held = int(s.request.request_id), s.request.num_tokens
        tokens = [self.true_token(i, held)]
        for draft in s.drafts.token_ids:
            if draft != tokens[-1]:
                break
            tokens.append(self.true_token(i, held + len(tokens)))
        return tokens

    def updated(self, scheduled, sampled):
        alive = {name: s.request for name, s in scheduled.items() if not s.request.finished}
        for name in alive.keys() & sampled.keys():
            drafts = self.propose(int(name), alive[name].num_tokens)
            alive[name].extras["drafts"] = Drafts(drafts)
        return {
            "sampled": {name: len(tokens) for name, tokens in sampled.items()},
            "after": {name: [r.num_computed_tokens, r.num_tokens] for name, r in alive.items()},
        }

    def propose(self, i, held):
        """What the recording's drafter says: so many right tokens, then wrong ones."""
        most = self.config["num_speculative_tokens"]
        count = most if self.config["method"] == "draft_model" else (i * 31 + held * 17) % (most + 1)
        right = (i * 13 + held * 7) % (most + 2)
        return [self.true_token(i, held + j) + (j >= right) for j in range(count)]


def test_every_field_of_every_step_equals_vllm():
    found = equal_steps(Path(__file__).parent / "vllm_0_32_speculative.jsonl.gz", SpeculativeReplay)
    steps = [step for _, own in found for step in own]
    drafts = sum(len(tokens) for step in steps for tokens in step["spec"].values())
    preemptions = sum(len(step["preempted"]) for step in steps)
    assert (len(found), len(steps), drafts, preemptions) == (120, 15016, 38475, 796)
