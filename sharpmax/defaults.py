"""Hold the defaults that function signatures and the help of the command line share. It imports nothing of ours."""

from typing import Any

# Calibrate: what `learn` fits on, and how.
METHODS = ("match", "learn", "search")
FIT_TASKS = ("lookup", "lookup:close")
FIT_SIZES = (8, 32)  # entries, from low to high
TEXT_BEFORE = 12_000  # characters of text before a question, at most
LEARN_STEPS = 108  # twelve turns of each of three kinds of text at three lengths
QUESTIONS_PER_STEP = 2
LEARN_RATE = 0.03
LEARNED = "abc"  # the numbers of `LogLinear` that are learned
TRUTH = 0.5  # the share of text's cost that is the rise of its own loss: what predicts text better costs nothing

# Calibrate and evaluate: what a policy is judged on.
EXAM_TASKS = ("lookup",)
EXAM_SIZES = (16, 32, 64)  # entries
PROMPTS = 40  # per task and size
WINDOWS = (256, 1024, 4096)  # tokens per window of text; longer than the model's context are dropped
TEXT_TOKENS = 8 * WINDOWS[-1]  # of each kind of text: eight of the longest windows, because two tell nothing
MOST_RISE = 0.005  # the allowed rise of perplexity, a share
TOGETHER = 1  # tokens read at once

# Calibrate --quick: what two idle cores finish in about ten minutes with SmolLM2.
QUICK: dict[str, Any] = {
    "steps": 18,
    "fit_sizes": (8, 16),
    "text_before": 200,
    "learning_rate": 0.03,
    "sizes": (16, 32),
    "prompts": 24,
    "windows": (256,),
    "text_tokens": 4096,
}
QUICK_FINE = 1 / 4  # the share of a strength that is too small a step, while choosing

# Diagnose and certify.
ROWS = 64  # query rows observed at each length
CERTIFIED_LENGTH = 512  # tokens of text that spreads are measured on

# Fine-tune.
TASK = "clrs-text"
POLICIES = ("none", "paper", "ssmax", "learn")  # by name; a card is one too
POLICY = "none"
TRAIN_STEPS = 500
TRAIN_TOKENS = 32768  # per step and process
TRAIN_RATE = 5e-4  # of the weights
POLICY_RATE = 3e-3  # of what the policy learns
SAVE_EVERY = 200  # steps from checkpoint to checkpoint
TRAIN_LENGTHS = tuple(range(4, 17))  # of the inputs
TEST_LENGTHS = (8, 12, 16, 20, 24, 32)
TRAIN_EXAMPLES = 81920
TEST_SAMPLES = 4  # of each algorithm, length and validation seed

# Check a server.
SERVED_PROMPTS = 20  # per size
SERVED_TOGETHER = 8  # questions asked at once
SERVED_TIMEOUT = 120.0  # seconds until a server must answer

# Every run.
OUT = "runs"  # the folder of the runs
SEED = 0
