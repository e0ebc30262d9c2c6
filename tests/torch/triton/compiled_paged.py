"""Compiles the paged kernels for GPUs that are not here, and tells how much shared memory a program of each takes.

As a script it prints bytes taken and to be had by kernel and GPU, as JSON.
"""

import json
import sys

from tests.torch.triton.shared_memory import compiled, is_stride

GPUS = {"H100, H200": (90, 232_448), "GeForce, L4, L40S": (89, 101_376)}
TENSORS = {"q", "k", "v", "out"}
INTEGERS = {"S", "H", "window", "width", "parts", "s_numbers"}


def taken(kernel, capability, dtype, constants, launch):
    """Compile one kernel and return its bytes of shared memory."""

    def type_of(name):
        if name in TENSORS or (name == "scores" and dtype == "fp32"):
            return f"*{dtype}"
        if name == "scores":
            return "*fp16"
        if name in ("table", "starts", "lengths", "ends"):
            return "*i32"
        if name in INTEGERS or is_stride(name):
            return "i32"
        return "fp32" if name in ("scale_log2", "bend") else "*fp32"

    return compiled(kernel, capability, {name: type_of(name) for name in kernel.arg_names}, constants, launch)


def main():
    """Compile the kernels as a server launches them: one query each, and many."""
    import torch

    from sharpmax.torch.triton import paged
    from sharpmax.torch.triton.tiles import _tile_shape

    found = {}
    for gpu, (capability, memory) in GPUS.items():
        for dtype, width in (("bf16", 128), ("fp16", 256), ("fp32", 64)):
            kind = torch.float32 if dtype == "fp32" else torch.float16
            for single in (True, False):
                shape = _tile_shape("decode" if single else "forward", width, width, kind, memory)
                rows = 16 if single else shape.BM
                constants = {
                    "GROUPS": 4, "ROWS": rows, "QUERIES": 1 if single else rows // 4, "D": width, "BD": shape.BD,
                    "BN": shape.BN, "SIZE": 16, "HAS_WINDOW": not single, "SINGLE": single, "KEEP": single,
                    "DV": width, "BDV": shape.BD, "SPLIT": single, "BH": 32, "PARTS": 64, "KIND": 1, "COUNT": 8,
                }  # fmt: skip
                absent = {"starts": None, "sinks": None, "bend": None} if single else {}
                launch = {"num_warps": shape.num_warps, "num_stages": 2 * shape.num_stages - 1}
                for kernel in (paged.scores_kernel, paged.weigh_kernel, paged.merge_kernel):
                    own = {name: value for name, value in constants.items() if name in kernel.arg_names}
                    flags = {name: value for name, value in absent.items() if name in kernel.arg_names}
                    how = launch if kernel is not paged.merge_kernel else {}
                    name = f"{gpu}: {kernel.__name__}, {dtype}, {width}, {'one query' if single else 'many'}"
                    found[name] = taken(kernel, capability, dtype, {**own, **flags}, how), memory
    found |= of_continuous_batching(paged, _tile_shape, torch.bfloat16)
    json.dump(found, sys.stdout)


def of_continuous_batching(paged, tile_shape, dtype):
    """Compile for Hopper what transformers asks for: places for blocks, three heads to a key head, every policy.

    And one query each whose scores are not kept.
    """
    capability, memory = GPUS["H100, H200"]
    shape, single = tile_shape("forward", 64, 64, dtype, memory), tile_shape("decode", 128, 128, dtype, memory)
    constants = {
        "GROUPS": 3, "ROWS": shape.BM, "QUERIES": shape.BM // 3, "D": 64, "BD": 64, "DV": 64, "BDV": 64,
        "BN": shape.BN, "SIZE": 1, "HAS_WINDOW": False, "SINGLE": False, "KEEP": False, "SPLIT": True, "BH": 16,
        "PARTS": 8, "KIND": 3, "COUNT": 5,
    }  # fmt: skip
    absent, widths = {"sinks": None, "bend": None}, {"D": 128, "BD": 128, "DV": 128, "BDV": 128}
    read_twice = {**constants, **widths, "GROUPS": 4, "ROWS": 16, "QUERIES": 1, "BN": single.BN, "SIZE": 16}
    read_twice |= {"SINGLE": True, "starts": None}
    launches = [{"num_warps": s.num_warps, "num_stages": 2 * s.num_stages - 1} for s in (shape, single)]
    asked = {"gather_kernel": (paged.gather_kernel, constants, {})}
    for kernel in (paged.scores_kernel, paged.weigh_kernel):
        asked[f"{kernel.__name__}, places"] = (kernel, constants, launches[0])
        asked[f"{kernel.__name__}, read twice"] = (kernel, read_twice, launches[1])
    for kind, count in ((0, 1), (1, 8), (2, 6), (3, 5), (4, 6), (6, 4)):
        asked[f"merge_kernel, policy {kind}"] = (paged.merge_kernel, {**constants, "KIND": kind, "COUNT": count}, {})
    found = {}
    for name, (kernel, given, launch) in asked.items():
        own = {name: value for name, value in {**absent, **given}.items() if name in kernel.arg_names}
        found[name] = taken(kernel, capability, "bf16", own, launch), memory
    return found


if __name__ == "__main__":
    main()
