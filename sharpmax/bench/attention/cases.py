"""List what is measured in PyTorch: the inputs of each case, and who takes part in it.

Every case has plain attention on its own tensors beside it: how much work a kernel has may depend on them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sharpmax import PAPER, detach
from sharpmax.bench.attention.contestants import Contestant, Setting, named, ours, plain
from sharpmax.bench.attention.inputs import CASES, draw
from sharpmax.bench.attention.masks import padded, settings
from sharpmax.bench.attention.turns import Entry, Rows, in_turns
from sharpmax.bench.random_policies import POLICIES
from sharpmax.torch import row_stats

TOKENS, FEATURES = 16384, 2048  # per batch on a GPU, and heads times width
CPU_FEATURES = 512
SHORT_LENGTHS, SHORT_HEADS = (1024, 8192), ((12, 12), (9, 3))
"""The part `short`: tokens, and heads of queries and keys, of 16 sequences, and of SmolLM2's shape, two sequences."""
RETRIEVAL_FROM = 16384  # tokens from which retrieval is worth a case


class Shape:
    """One length and width: the setting, and the inputs of each kind."""

    def __init__(
        self, device: str, length: int, width: int, seed: int, dtype: str = "", heads: tuple[int, int] | None = None
    ) -> None:
        self.heads = heads  # of queries, and of keys; None: as many as the features allow
        self.device, self.length, self.width, self.seed = device, length, width, seed
        self.dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
        self.setting = Setting(length, length, is_causal=True, device=device)

    def inputs(self, kind: str) -> Any:
        """Draw query, key and value."""
        on_gpu = self.device == "cuda"
        features = FEATURES if on_gpu else max(CPU_FEATURES, self.width)
        q, k, v = draw(
            kind,
            length=self.length,
            width=self.width,
            tokens=TOKENS if on_gpu else self.length,
            features=features if self.heads is None else self.heads[0] * self.width,
            dtype=getattr(torch, self.dtype),
            device=self.device,
            seed=self.seed,
        )
        if self.heads is not None:
            k, v = (x[:, : self.heads[1]].contiguous() for x in (k, v))
        return [q, k, v]

    def learning(self) -> tuple[Any, Any]:
        """Draw query, key and value that take gradients, and the gradient of the output."""
        tensors = [x.requires_grad_() for x in self.inputs("sharpened")]
        generator = torch.Generator(self.device).manual_seed(self.seed)
        gradient = torch.randn(tensors[0].shape, generator=generator, device=self.device)
        return tensors, gradient.to(tensors[0].dtype)


def forward(shape: Shape) -> list[Entry]:
    """Return the forward cases, each beside plain attention on the same tensors, and row statistics."""
    entries = []
    for case, kind in CASES.items():
        if kind == "retrieval" and shape.length < RETRIEVAL_FROM:
            continue
        tensors = shape.inputs(kind)
        # Old files have one plain row, on the sharpened inputs.
        entries += [
            Entry("plain" if kind == "sharpened" else f"plain, {case}", c, tensors) for c in plain(shape.device)
        ]
        entries += [Entry(f"forward, {case}", c, tensors) for c in ours(shape.device)]
        if kind == "sharpened":
            entries.append(Entry("row_stats", Contestant("", "entropy", _row_stats), tensors))
    return entries


def _row_stats(setting: Setting) -> Callable[..., Any]:
    return lambda q, k, v: row_stats(q, k, is_causal=setting.is_causal).entropy.unsqueeze(-1)


def trained(shape: Shape, about: str = "", *, detached: bool = True) -> list[Entry]:
    """Return forward + backward: plain, through beta, and with beta detached; `about` stands after the case's name."""
    tensors, gradient = shape.learning()
    entrants = [(f"plain, forward + backward{about}", c) for c in plain(shape.device)]
    entrants += [(f"forward + backward{about}", c) for c in ours(shape.device)]
    if detached:
        entrants += [("forward + backward, detached", c) for c in ours(shape.device, detach(PAPER), "detached")]
    return [Entry(case, c, tensors, gradient) for case, c in entrants]


def time_ours(shape: Shape, repeats: int) -> Iterator[Rows]:
    """Time the forward cases and the training cases of one shape."""
    yield in_turns(forward(shape), shape.setting, repeats)
    yield in_turns(trained(shape), shape.setting, repeats)


def by_policy(shape: Shape) -> list[Entry]:
    """Return the forward of policies other than `PAPER`, on rows that are spread as those it sharpens."""
    tensors = shape.inputs("sharpened")
    entries = [Entry("plain, other policies", c, tensors) for c in plain(shape.device)]
    for name, policy_of in POLICIES.items():
        policy = policy_of(tensors[0].shape[1])
        entries += [Entry(f"forward, {name}", c, tensors) for c in ours(shape.device, policy, "policy")]
    return entries


def with_statistics(shape: Shape, about: str = "") -> list[Entry]:
    """Return the forward without row statistics and with them; `about` stands after the case's name."""
    tensors = shape.inputs("sharpened")
    entries = [Entry(f"plain, forward{about}, statistics", c, tensors) for c in plain(shape.device)]
    entries += [Entry(f"forward{about}, without return_stats", c, tensors) for c in ours(shape.device)]
    with_stats = ours(shape.device, returns_stats=True)
    entries += [Entry(f"forward{about}, with return_stats", c, tensors) for c in with_stats]
    return entries


def time_heads(shape: Shape, repeats: int) -> Iterator[Rows]:
    """Time one width of a head, forward and forward + backward."""
    tensors = shape.inputs("sharpened")
    entries = [Entry("plain", c, tensors) for c in plain(shape.device)]
    entries += [Entry("forward, rows sharpened", c, tensors) for c in ours(shape.device)]
    yield in_turns(entries, shape.setting, repeats)
    yield in_turns(trained(shape, detached=False), shape.setting, repeats)


def time_short(device: str, repeats: int, seed: int, lengths: Sequence[int] = SHORT_LENGTHS) -> Iterator[Rows]:
    """Time short sequences, and the shape of a small model: forward, with statistics, forward + backward."""
    for length, heads in zip(lengths, SHORT_HEADS, strict=True):
        shape = Shape(device, length, 64, seed, heads=heads)
        about = f", {heads[0]}/{heads[1]} heads"
        yield in_turns(with_statistics(shape, about), shape.setting, repeats)
        yield in_turns(trained(shape, about, detached=False), shape.setting, repeats)


def time_float32(shape: Shape, repeats: int) -> Iterator[Rows]:
    """Time each implementation that serves float32 on a GPU, first the one that dispatch takes: is it the fastest?"""
    tensors, (learning, gradient) = shape.inputs("sharpened"), shape.learning()
    contestants = [*ours("cuda"), *named("triton", "stock", "chunked")]
    for case, given, of in (("forward", tensors, None), ("forward + backward", learning, gradient)):
        entries = [Entry(f"plain, {case}, float32", plain("cuda")[-1], given, of)]
        entries += [Entry(f"{case}, float32", c, given, of) for c in contestants]
        yield in_turns(entries, shape.setting, repeats)


def time_masks(shape: Shape, repeats: int) -> Iterator[Rows]:
    """Time what models ask for beyond a causal mask, beside plain attention that is asked the same where it can be."""
    contestants = [*ours("cuda"), *named("chunked")]
    for name, setting, tensors in settings(shape.inputs("sharpened"), shape.device):
        learning = [x.detach().clone().requires_grad_() for x in tensors]
        gradient = tensors[0].flip(2).contiguous()  # any will do
        for case, given, of in (("", tensors, None), ("forward + backward, ", learning, gradient)):
            entries = [Entry(f"plain, {case}{name}", c, given, of) for c in plain(shape.device)]
            entries += [Entry(f"{case or 'forward, '}{name}", c, given, of) for c in contestants]
            yield in_turns(entries, setting, repeats)


def time_others(shape: Shape, others: Sequence[Contestant], repeats: int) -> Iterator[Rows]:
    """Time what other packages offer, in turns with plain attention, whose rows are those of `time_ours`."""
    torch.compiler.reset()  # a shape of the last round is no shape of this one
    for case, (tensors, gradient) in (
        ("forward", (shape.inputs("sharpened"), None)),
        ("forward + backward", shape.learning()),
    ):
        entries = [Entry("plain", c, tensors, gradient) for c in plain(shape.device)]
        entries += [Entry(f"other, {case}", c, tensors, gradient) for c in others]
        yield [row for row in in_turns(entries, shape.setting, repeats) if row["case"] != "plain"]


def time_decode(others: Sequence[Contestant], repeats: int, seed: int, *, masked: bool = False) -> Rows:
    """Time one query against 32,768 keys: 32 sequences, 32 query and 8 key heads, some padding where `masked`."""
    length, width = 32768, 128
    q = draw("sharpened", length=length, width=width, tokens=length, features=width, dtype=torch.bfloat16,
             device="cuda", seed=seed)[0][:, :, :1024].reshape(32, 32, 1, width)  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(seed + 1)
    shape = (32, 8, length, width)
    k, v = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    changes = {"mask": padded(32, length, "cuda")} if masked else {}
    setting = Setting(1, length, is_causal=False, device="cuda", changes=changes)
    entrants = [("plain, decode", c) for c in plain("cuda")]
    if masked:
        entrants += [("decode, padding mask", c) for c in (*ours("cuda"), *named("chunked"))]
    else:
        entrants += [("decode", c) for c in ours("cuda")]
        entrants += [("decode, CUDA graph", Contestant("", c.kind, _graphed(c))) for c in ours("cuda")]
        entrants += [("other, decode", c) for c in others]
    tensors = (q, k, v)
    return in_turns([Entry(case, c, tensors) for case, c in entrants], setting, repeats)


def _graphed(contestant: Contestant) -> Callable[[Setting], Callable[..., Any]]:
    """Build the contestant as a CUDA graph, captured at its first call, on the tensors of that call."""

    def build(setting: Setting) -> Callable[..., Any]:
        call, graph = contestant.build(setting), torch.cuda.CUDAGraph()
        captured: list[Any] = []

        def replay(*tensors: Any) -> Any:
            if not captured:
                call(*tensors)
                with torch.cuda.graph(graph):
                    captured.append(call(*tensors))
            graph.replay()
            return captured[0]

        return replay

    return build
