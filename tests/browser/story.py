"""A run told by a script instead of an engine: the same events, in the same order, with believable numbers.

For tests and pictures of pages.  Nothing is learned here; the numbers follow a curve.
"""

import math
import random
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]
PHASE_SECONDS = {"sync-weights": 0.02, "collect": 1.9, "score": 0.04, "credit": 0.01, "update": 1.1}


class Story:
    """Events of attempt 1 of a run of ``steps`` steps, numbered from 1."""

    def __init__(
        self, *, steps: int = 60, groups: int = 4, group_size: int = 8, begin_at: float, seed: int = 7
    ) -> None:
        self.steps, self.groups, self.group_size, self.now = steps, groups, group_size, begin_at
        self.dice = random.Random(seed)
        self.seq = 0

    def whole(self) -> Iterator[list[Event]]:
        """One batch per step, the start first, the end last."""
        yield self.beginning()
        for step in range(1, self.steps + 1):
            yield self.step(step)
        yield self.ending()

    def event(self, kind: str, **fields: Any) -> Event:
        self.seq += 1
        self.now += 0.002
        return {"kind": kind, "seq": self.seq, "attempt": 1, "at": self.now, **fields}

    def log(self, message: str, level: str = "info", source: str = "loop") -> Event:
        return self.event("log", level=level, source=source, message=message)

    def beginning(self) -> list[Event]:
        events = [self.event("started", from_step=0, total_steps=self.steps), self.log("attempt 1 begins at step 0")]
        events.append(self.event("phase", step=0, phase="cold-start"))
        for step in range(20, 601, 20):
            loss = 0.35 + 2.9 * math.exp(-step / 90) + self.dice.gauss(0, 0.01)
            events.append(self.event("metric", step=step, values={"sft/loss": loss}))
        self.now += 38
        events.append(self.event("phase", step=0, phase="cold-start", seconds=38.2))
        events.append(self.log("cold start done: 600 steps on 4096 demonstrations, 60 % of them wrong"))
        return events + self.evaluation(0)

    def skill(self, step: int) -> float:
        return 0.27 + 0.69 / (1 + math.exp(-(step - 0.33 * self.steps) / (0.09 * self.steps)))

    def evaluation(self, step: int) -> list[Event]:
        skill = self.skill(step)
        values = {
            "eval/success_greedy": min(1.0, max(0.0, 1.35 * skill - 0.31)),
            "eval/success_sampled": skill,
            "eval/tool_error_rate": 0.21 * (1 - skill) + 0.004,
        }
        values |= {f"eval/level_{n}_greedy": min(1.0, max(0.0, 1.4 * skill - 0.12 * n)) for n in (1, 2, 3)}
        events = [self.event("phase", step=step, phase="evaluate")]
        events += [self.stored(self.trajectory("eval-greedy", step, group, 0)) for group in range(6)]
        self.now += 4.1
        return [
            *events,
            self.event("metric", step=step, values=values),
            self.event("phase", step=step, phase="evaluate", seconds=4.1),
        ]

    def step(self, step: int) -> list[Event]:
        events = []
        for phase, seconds in PHASE_SECONDS.items():
            took = seconds * self.dice.uniform(0.85, 1.2)
            events.append(self.event("phase", step=step, phase=phase))
            self.now += took
            if phase == "credit":
                for group in range(self.groups):
                    events += [self.stored(rollout) for rollout in self.group(step, group)]
            events.append(self.event("phase", step=step, phase=phase, seconds=took))
        events.append(self.event("metric", step=step, values=self.metrics(step)))
        if step == 23:
            events.append(
                self.log("sandbox lost: the sandbox was killed; the episode is done again", "warning", "rollout-0")
            )
        if step % 10 == 0:
            path = f"/runs/checkpoints/step-{step:06d}"
            events.append(self.event("checkpoint", step=step, path=path, size_bytes=4_190_208 + step, seconds=0.18))
            events.append(self.log(f"checkpoint of step {step} written", source="trainer"))
        if step % 20 == 0:
            events += self.evaluation(step)
        return events

    def metrics(self, step: int) -> dict[str, float]:
        skill, noise = self.skill(step), self.dice.gauss
        return {
            "train/reward": min(1, max(0, skill + noise(0, 0.035))),
            "train/success": min(1, max(0, skill + noise(0, 0.03))),
            "train/tool_error_rate": max(0, 0.22 * (1 - skill) + noise(0, 0.008)),
            "train/tool_calls": 0.5 + skill + noise(0, 0.03),
            "train/turns": 1.4 + skill + noise(0, 0.04),
            "train/response_tokens": 12 + 22 * skill + noise(0, 0.8),
            "train/truncated": 0.0,
            "train/entropy": 0.12 + 0.5 * (1 - skill) + noise(0, 0.012),
            "train/loss": noise(0, 0.012),
            "train/grad_norm": 0.35 + 0.5 * (1 - skill) + abs(noise(0, 0.09)),
            "train/clip_fraction": max(0, 0.03 * (1 - skill) + noise(0, 0.004)),
            "train/ratio_max": 1.3 + abs(noise(0, 0.3)),
            "train/mismatch_kl": 1e-7,
            "train/lr": 3e-4,
            "train/staleness_mean": 0.0,
            "train/staleness_max": 0.0,
            "train/discarded": float(step == 23),
            "train/repairs_shallow": round(9 * (1 - skill)),
            "train/repairs_deep": round(3 * (1 - skill)),
            "train/repairs_failed": float(step == 23),
            "train/first_attempt_error_rate": max(0, 0.34 * (1 - skill) + noise(0, 0.008)),
            "perf/tokens_per_s": 9800 + noise(0, 420),
            "perf/step_seconds": 3.07 + noise(0, 0.15),
            "perf/eta_seconds": 3.2 * (self.steps - step) * (1 + 0.3 / step),
            "perf/collect_seconds": 1.9 + noise(0, 0.12),
            "perf/update_seconds": 1.1 + noise(0, 0.06),
            "perf/rss_mib": 910.0,
        }

    def stored(self, trajectory: dict[str, Any]) -> Event:
        return self.event("trajectory", trajectory=trajectory)

    def group(self, step: int, group: int) -> list[dict[str, Any]]:
        """With the advantages that GRPO gives to the group's rewards."""
        members = [self.trajectory("train", step, group, index) for index in range(self.group_size)]
        mean = sum(member["reward"] for member in members) / len(members)
        spread = math.sqrt(sum((member["reward"] - mean) ** 2 for member in members) / len(members))
        for member in members:
            advantage = (member["reward"] - mean) / spread if spread else 0.0
            for turn in member["segments"][0]["turns"]:
                turn["advantages"] = [advantage] * len(turn["token_ids"])
                turn["old_logprobs"] = [min(0.0, logprob + self.dice.gauss(0, 0.004)) for logprob in turn["logprobs"]]
        return members

    def trajectory(self, purpose: str, step: int, group: int, index: int) -> dict[str, Any]:
        is_training = purpose == "train"
        prompt = (step - 1) * self.groups + group if is_training else step // 20 * 6 + group
        task_dice = random.Random(f"{purpose} {step} {group}")
        level = task_dice.randint(1, 3)
        a, b, c = (task_dice.randint(2, 99) for _ in range(3))
        question, code, answer = {
            1: (f"{a} * {b}", f"print({a} * {b})", a * b),
            2: (f"({a} + {b}) * {c}", f"print(({a} + {b}) * {c})", (a + b) * c),
            3: (f"cell a * cell d + {c}", f"print({a} * {b} + {c})", a * b + c),
        }[level]
        uses_tool = self.dice.random() < self.skill(step)
        fumbles = uses_tool and self.dice.random() < 0.25 * (1 - self.skill(step)) + 0.02
        shown = answer if uses_tool else answer + self.dice.choice((-20, -11, 7, 13, 100))
        calls: list[tuple[str, str, str | None]] = []
        if level == 3 and uses_tool:
            calls += [('show("a")', str(a), None), ('show("d")', str(b), None)]
        broken = code.replace("print", "prnt")
        is_repaired = fumbles and index % 2 == 0
        if fumbles and not is_repaired:
            calls.append((broken, "Error: NameError", "name"))
        if uses_tool:
            calls.append((code, str(answer), None))
        turns, context = [], f"<user>{question}<assistant>"
        for code_, output, error in calls:
            turns.append(self.turn(context, f"<tool>{code_}</tool>", step, code_, output, error))
            context = f"<output>{output}</output><assistant>"
        turns.append(self.turn(context, f"<answer>{shown}</answer>", step))
        reward = 1.0 if shown == answer else 0.0
        return {
            "id": f"{purpose}-{prompt}-{index}", "purpose": purpose, "prompt": prompt, "member": index,
            "sampled_at_version": step - is_training, "trained_at_step": step if is_training else None,
            "task": {"id": f"{'train' if purpose == 'train' else 'heldout'}-{step * 32 + group}", "level": level,
                     "question": question,
                     "split": "train" if purpose == "train" else "heldout", "answer": str(answer)},
            "segments": [{"turns": turns}],
            "stop_reason": "answered", "answer": str(shown), "success": shown == answer, "reward": reward,
            "rewards": {"correct": reward},
            "changes": [_repair(len(calls) - 1, broken, code)] if is_repaired else [],
            "first_attempt_errors": int(fumbles),
        }  # fmt: skip

    def turn(
        self, context: str, text: str, step: int, code: str | None = None, output: str = "", error: str | None = None
    ) -> dict[str, Any]:
        pieces = _pieces(text)
        call = None
        if code is not None:
            call = {"id": "call-1", "name": "python", "arguments": {"code": code}, "output": output,
                    "status": "error" if error else "ok", "error_class": error,
                    "seconds": self.dice.uniform(0.0008, 0.003)}  # fmt: skip
        return {
            "context_ids": [ord(letter) % 97 for letter in context], "context_text": context, "pieces": pieces,
            "token_ids": [ord(piece[-2:][0]) % 97 for piece in pieces],
            "policy_versions": [max(0, step - 1)] * len(pieces),
            "logprobs": [-abs(self.dice.gauss(0, 0.9 if piece.isdigit() else 0.12)) for piece in pieces],
            "tool_calls": [call] if call else [], "answered": call is None,
            "began_at": self.now, "seconds": 0.02 * len(pieces),
        }  # fmt: skip

    def usage(self, step: int) -> dict[str, Any] | None:
        """That of a heartbeat; None: nothing was measured."""
        return None

    def ending(self) -> list[Event]:
        before, after = self.skill(0), self.skill(self.steps)
        summary = {"success_sampled": {"before_rl": before, "after": after}, "steps": self.steps}
        return [self.log("the run is over"), self.event("finished", outcome="succeeded", summary=summary)]


class Overlapping(Story):
    """The same run with an asynchronous ratio of 2: its steps have lanes, a buffer, and rollouts of several ages.

    It samples from two SGLang servers, the second of which dies at step 5 and is back at step 7.
    """

    def step(self, step: int) -> list[Event]:
        events = super().step(step)
        metrics = next(event for event in events if event["kind"] == "metric" and "train/reward" in event["values"])
        metrics["values"] |= self.buffer_metrics()
        metrics["values"] |= {f"perf/cpu_{use['role']}": use["cores"] for use in self.processes()}
        lanes = self.event("lanes", step=step, spans=self.spans(self.now - 3.4, step))
        return [*events, lanes]

    def usage(self, step: int) -> dict[str, Any]:
        return {"at": self.now, "step": step, "processes": self.processes(), "servers": self.servers(step)}

    def processes(self) -> list[dict[str, Any]]:
        busy = {"loop": 0.2, "learner": 1.7, "generator": 0.3, "rollout": 0.6}
        return [
            {"name": role, "role": role, "pid": 4000 + number, "cores": self.dice.uniform(0.8, 1.2) * cores,
             "memory_bytes": (number + 1) * 300 * 2**20}
            for number, (role, cores) in enumerate(busy.items())
        ]  # fmt: skip

    def servers(self, step: int) -> list[dict[str, Any]]:
        up = {"health": "up", "running": self.dice.randint(4, 12), "queued": self.dice.randint(0, 3), "in_hand": 14,
              "tokens_per_s": self.dice.uniform(900, 1100), "cache_hit_rate": 0.61, "version": step}  # fmt: skip
        down = {"health": "down", "reason": "no answer to 3 looks", "running": None, "queued": None, "in_hand": 0,
                "tokens_per_s": 0.0, "cache_hit_rate": 0.58, "version": 4}  # fmt: skip
        of_each = (up, down if step in (5, 6) else up)
        return [
            {"number": number, "url": f"http://127.0.0.1:{31000 + number}", "restarts": int(number == 1 and step > 6)}
            | values
            for number, values in enumerate(of_each)
        ]

    def buffer_metrics(self) -> dict[str, float]:
        fresh, old = self.dice.uniform(0.1, 0.3), self.dice.uniform(0.15, 0.35)
        return {
            "staleness/0": fresh, "staleness/1": 1 - fresh - old, "staleness/2": old,
            "train/staleness_mean": 1 - fresh + old, "train/staleness_max": 2.0,
            "buffer/ready": float(self.dice.randint(0, 3)), "buffer/running": float(self.dice.randint(5, 9)),
            "buffer/waiting": float(self.dice.randint(2, 4)),
            "buffer/trainer_waited_seconds": self.dice.uniform(0.9, 1.5),
            "buffer/generation_blocked_seconds": self.dice.uniform(0, 0.1),
            "buffer/discarded_stale": float(self.dice.random() < 0.1),
            "redundancy/unused_rollouts": float(self.dice.randint(1, 4)),
            "redundancy/unused_tokens": float(self.dice.randint(40, 200)),
        }  # fmt: skip

    def spans(self, begin: float, step: int) -> list[dict[str, Any]]:
        """Twelve rollouts of two turns each beside the update of the batch before."""
        spans = []
        for rollout in range(12):
            at = begin + self.dice.uniform(0, 0.9)
            for _ in range(2):
                for lane, mean in (("generation", 0.35), ("environment", 0.12)):
                    took = mean * self.dice.paretovariate(1.8)
                    spans.append(_span(lane, f"train-{step * 4 + rollout // 4}-{rollout % 4}", at, min(took, 2.0)))
                    at += min(took, 2.0)
            spans.append(_span("reward", f"train-{step * 4 + rollout // 4}-{rollout % 4}", at, 0.03))
        for prompt in range(3):
            its = [span for span in spans if span["label"].startswith(f"train-{step * 4 + prompt}-")]
            begun, ended = (
                min(span["began_at"] for span in its),
                max(span["began_at"] + span["seconds"] for span in its),
            )
            spans.append(_span("rollouts", f"prompt {step * 4 + prompt}", begun, ended - begun))
        spans.append(_span("training", f"update of step {step}", begin + 1.6, 1.2))
        spans.append(_span("weights", f"version {step}", begin + 2.8, 0.06))
        return spans


def _span(lane: str, label: str, began_at: float, seconds: float) -> dict[str, Any]:
    return {"lane": lane, "label": label, "began_at": began_at, "seconds": seconds}


def _repair(turn: int, broken: str, code: str) -> dict[str, Any]:
    """A failed call that was replaced by its correction at the second attempt."""
    start = 1  # behind the mark of the tool
    return {
        "kind": "purified", "turn": turn, "start": start, "stop": start + len(code), "reason": "shallow",
        "before": broken, "after": code,
        "details": {"attempts": 2, "error_class": "name", "similarity": 0.92,
                    "first_output": "NameError: name 'prnt' is not defined"},
    }  # fmt: skip


def _pieces(text: str) -> list[str]:
    """Special tokens whole, everything else letter by letter, as the built-in tokenizer does."""
    pieces: list[str] = []
    while text:
        end = text.index(">") + 1 if text.startswith(("<tool>", "</tool>", "<answer>", "</answer>")) else 1
        pieces.append(text[:end])
        text = text[end:]
    return pieces
