"""Hold the defaults that function signatures and the help of the command line share. It imports nothing of ours."""

from typing import Any

# Calibrate: what `learn` fits on, and how.
METHODS = ("match", "learn", "search", "headscale", "seal-h", "seal-c")
MERGED = ("headscale", "seal-h", "seal-c")  # methods whose numbers are merged into the weights: no card
FIT_TASKS = ("lookup", "lookup:close")
FIT_SIZES = (8, 32)  # entries of a question, from low to high
TEXT_BEFORE = 12_000  # characters of text that stand before a question, at most
LEARN_STEPS = 108  # training steps: twelve for each of three kinds of text at three lengths
QUESTIONS_PER_STEP = 2  # questions in one training step
LEARN_RATE = 0.03  # learning rate of Adam
LEARNED = "abc"  # the numbers of `LogLinear` that are learned
SCALINGS = ("none", "ntk", "yarn", "yarn-plain", "self-extend")
SCALING = "yarn"  # of the positions, where the context is extended
TRUTH = 0.5  # the share of text's cost that is the rise of its own loss: what predicts text better costs nothing
RIVAL_SEEDS = 5  # fits of a card and of each rival, `reproduce calibration --arms`

# Calibrate and evaluate: what a policy is judged on.
EXAM_TASKS = ("lookup",)
EXAM_SIZES = (16, 32, 64)  # entries of a question
PROMPTS = 40  # prompts per task and size
WINDOWS = (256, 1024, 4096)  # tokens per window of text; longer than the model's context are dropped
TEXT_TOKENS = 8 * WINDOWS[-1]  # tokens of each kind of text: eight of the longest windows; two decide nothing
MOST_RISE = 0.005  # allowed rise of perplexity, as a share
TOGETHER = 1  # tokens read at once; 1 reads one text at a time

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
FINE = 1 / 32  # the share of a strength that is too small a step, while choosing
QUICK_FINE = 1 / 4  # the share of a strength that is too small a step, while choosing

# Diagnose and certify.
ASKED = 8  # prompts of a task at each length
ROWS = 64  # query rows observed at each length
CERTIFIED_LENGTH = 512  # tokens of text that spreads are measured on

# Fine-tune.
TASK = "clrs-text"
POLICIES = ("none", "paper", "ssmax", "learn")  # by name; a card is one too
POLICY = "none"
TRAIN_STEPS = 500
TRAIN_TOKENS = 32768  # tokens per step and process
TRAIN_RATE = 5e-4  # learning rate of the weights
POLICY_RATE = 3e-3  # learning rate of what the policy learns
SAVE_EVERY = 200  # training steps between checkpoints
TRAIN_LENGTHS = tuple(range(4, 17))  # items of the inputs that are trained on
TEST_LENGTHS = (8, 12, 16, 20, 24, 32)  # items of the inputs that are asked
TRAIN_EXAMPLES = 81920  # examples to train on
TEST_SAMPLES = 4  # questions of each algorithm, length and validation seed

# Check a server.
SERVED_PROMPTS = 20  # questions per size
SERVED_TOGETHER = 8  # questions asked at once
SERVED_TIMEOUT = 120.0  # seconds until a server must have ended an answer

# Every run.
OUT = "runs"  # the folder of the runs
SEED = 0
