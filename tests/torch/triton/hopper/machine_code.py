"""Compiles our kernels for Hopper where there is none, and reads the machine code: what Python's run cannot see.

A product on the tensor cores (HGMMA) takes its tiles of shared memory by descriptors in uniform registers (UR). ptxas
12.8 sets some of them in front of one loop for the loop after it too, and where the first has no turn the second
multiplies with whatever the register held. So: on every way to a product, everything its descriptors are in is set.

As a script it prints, for each kernel or those named, its products and those not set, as JSON.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

Code = list[tuple[int, str]]  # address and instruction


def read(disassembly: str) -> Code:
    found = re.finditer(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", disassembly, re.MULTILINE)
    return [(int(m.group(1), 16), m.group(2).strip()) for m in found]


def products(code: Code) -> list[int]:
    return [i for i, (_, text) in enumerate(code) if "HGMMA" in text]


def unset(code: Code) -> list[str]:
    """Return the products with a descriptor that some way through the code does not set, and where."""
    before = _before(code)
    return [
        f"{code[i][0]:x} {code[i][1]}"
        for i in products(code)
        if any(_reaches_start(code, before, i, register) for register in _descriptors(code[i][1]))
    ]


def _descriptors(text: str) -> list[int]:
    """The registers a product's tiles are in: two a tile; the first two are not read where its tile is in registers."""
    skipped = 2 if re.search(r"\bR\d+, R\d+, gdesc", text) else 0
    return [int(base) + i for base in re.findall(r"gdesc\[UR(\d+)\]", text) for i in range(skipped, 4)]


def _sets(text: str) -> set[int]:
    operation, _, operands = re.sub(r"^@!?U?P\w+ ", "", text).partition(" ")
    target = re.match(r"(?:U?P\w+, )*UR(\d+)\b", operands)
    if target is None or not operation.startswith(("U", "R2UR")):
        return set()
    first = int(target.group(1))
    return {first, first + 1} if ".64" in operation or ".WIDE" in operation else {first}


def _before(code: Code) -> list[list[int]]:
    """Return, for each instruction, those it may follow; -1 where the code may be entered."""
    at = {address: i for i, (address, _) in enumerate(code)}
    after: list[list[int]] = []
    for i, (_, text) in enumerate(code):
        target = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        to = [at[int(target.group(1), 16)]] if target and int(target.group(1), 16) in at else []
        leaves = not text.startswith("@") and re.match(r"(BRA|BRX|EXIT|RET)\b", text)
        after.append([*to, *([] if leaves or i + 1 == len(code) else [i + 1])])
    before: list[list[int]] = [[] for _ in code]
    for i, targets in enumerate(after):
        for target in targets:
            before[target].append(i)
    # Partitions of warps are entered by a jump through a table: whatever nothing else leads to is an entry.
    reached: set[int] = set()
    for entry in range(len(code)):
        if entry not in reached:
            before[entry].append(-1)
            todo = [entry]
            while todo:
                i = todo.pop()
                if i not in reached:
                    reached.add(i)
                    todo += after[i]
    return before


def _reaches_start(code: Code, before: list[list[int]], product: int, register: int) -> bool:
    """Tell whether one can go back from the product to an entry without meeting what sets the register."""
    todo, seen = list(before[product]), set()
    while todo:
        i = todo.pop()
        if i == -1:
            return True
        if i not in seen and register not in _sets(code[i][1]):
            todo += before[i]
        seen.add(i)
    return False


def compiled(kernel, types, constants, maxnreg) -> Code:
    """Compile a Gluon kernel for Hopper and return its machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if str(signature[name]).startswith("*")
    }
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    options = {"num_warps": 4, "maxnreg": maxnreg}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"]
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        listing = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    return read(listing)


def our_kernels():
    """Return what `compiled` takes of each kernel for Hopper, at each width, causal; by name."""
    from triton.experimental.gluon import language as gl

    from sharpmax.torch.triton.hopper import single_pass as once
    from sharpmax.torch.triton.hopper import statistics as statistics

    numbers = dict.fromkeys(("H", "heads", "together", "tiles", "gap", "shift", "few", "LQ", "LK", "right"), "i32")
    numbers |= {"scale_log2": "fp32", "tail": "fp32", "s_numbers": "i32"}
    rows = ("numbers", "entropy", "logsumexp", "log2_sum", "maximum", "beta", "slope")
    numbers |= {**dict.fromkeys(rows, "*fp32"), "sharpened": "*bf16", "out": "*bf16"}
    numbers |= dict.fromkeys(("leaders", "marks", "counts", "listed", "counter"), "*i32")
    kernels = {}
    for width in (64, 128):

        def tile(rows, width=width):
            layout = gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], gl.bfloat16)
            return f"tensordesc<bf16[1, 1, {rows}, {width}],{layout!r}>"

        types = {**numbers, "q_tiles": tile(64), "k_tiles": tile(128), "v_tiles": tile(128)}
        shared = {"GROUPS": 1, "D": width, "HAS_RIGHT": True}
        policy = {"KIND": 1, "COUNT": 8, "STAGES": statistics.STAGES[width]}
        for notes in (True, False):
            written = 0b1010000 if notes else 0b1111111  # beta and beta·q, or all that it can write
            how = {"WRITTEN": written, "SETTLE": notes, "SAMPLE": notes, "PATHS": 2 * notes}
            name = f"statistics {width}{', with notes' if notes else ''}"
            kernels[name] = (statistics.statistics_kernel, types, {**shared, **policy, **how}, 96)
        for kind in (0, 1):
            how = {"KIND": kind, "COUNT": 8, "PATHS": 2, "STAGES": once.STAGES[width]}
            name = f"one pass {width}{', judged' if kind else ''}"
            kernels[name] = (once.single_pass_kernel, types, {**shared, **how}, 128)
    return kernels


if __name__ == "__main__":
    codes = {name: compiled(*how) for name, how in our_kernels().items() if name in (sys.argv[1:] or [name])}
    json.dump({name: (len(products(code)), unset(code)) for name, code in codes.items()}, sys.stdout)
