"""Compiles our Triton kernels for GPUs that are not here, and tells how much shared memory a program of each takes.

As a script it prints, for the hungriest kernels, bytes taken and to be had, as JSON.
"""

import json
import sys

GPUS = {"A100": (80, 166_912), "GeForce, L4, L40S": (89, 101_376)}
POINTERS = (
    "rows_out numbers row_scale lse entropy a0 a1 a2 beta lse_w delta slope d_beta logsumexp maximum log2_sum sinks"
)
TENSORS = "q k v out d_out d_sharp dq dk dv sharpened k_tiles v_tiles q_tiles"


def is_stride(name):
    return name[:1] == "s" and name[2:3] == "_"


def compiled(kernel, capability, types, constants, launch):
    """Compile a kernel for a GPU and return a program's bytes of shared memory; pointers and strides are aligned."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    places = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    even = [name for name in places if is_stride(name) or str(signature[name]).startswith("*")]
    aligned = {places[name]: [["tt.divisibility", 16]] for name in even}
    values = {places[name]: value for name, value in constants.items() if name in places}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch).metadata.shared


def shared_memory(kernel, capability, dtype, shape, width, **flags):
    """Return the bytes of shared memory of a kernel with a mask, a softcap and sinks, compiled for a GPU."""
    constants = {
        "GROUPS": 1, "D": width, "BD": shape.BD, "DV": width, "BDV": shape.BD, "BM": shape.BM, "BN": shape.BN,
        "HAS_LEFT": False, "HAS_RIGHT": True, "DOCUMENTS": False, "CURVED": False, "FOLD": False, "GIVEN": False,
        "TILED": False, "KIND": 1, "COUNT": 8, **flags,
    }  # fmt: skip
    types = dict.fromkeys(POINTERS.split(), "*fp32") | dict.fromkeys(TENSORS.split(), f"*{dtype}")
    types |= dict.fromkeys(("starts", "ends"), "*i32") | dict.fromkeys(("scale", "scale_log2", "bend"), "fp32")
    types |= {"seen": ("*u8", "*i32", *("i64",) * 6), "s_numbers": "i32"}
    types |= dict.fromkeys(filter(is_stride, kernel.arg_names), "i64")
    types |= dict.fromkeys(("H", "LQ", "LK", "left", "right"), "i32")
    launch = {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
    return compiled(kernel, capability, types, constants, launch)


def main():
    """Compile the kernels that take most, with the tiles that the GPU would be given."""
    import torch

    from sharpmax.torch.triton.forward import fused_kernel
    from sharpmax.torch.triton.gradients import key_gradient_kernel
    from sharpmax.torch.triton.solving import solve_kernel
    from sharpmax.torch.triton.tiles import _tile_shape

    gradient = {"STATISTICS": False, "OUTPUT": True}
    cases = [
        ("A100", "fp16", 128, "forward under a mask", fused_kernel, {}),
        ("A100", "fp16", 256, "output gradient of keys", key_gradient_kernel, gradient),
        ("GeForce, L4, L40S", "fp16", 256, "output gradient of keys", key_gradient_kernel, gradient),
        ("GeForce, L4, L40S", "fp32", 256, "output gradient of keys", key_gradient_kernel, gradient),
    ]
    found = {}
    for gpu, dtype, width, name, kernel, flags in cases:
        capability, memory = GPUS[gpu]
        shape = _tile_shape(name, width, width, {"fp16": torch.float16, "fp32": torch.float32}[dtype], memory)
        taken = shared_memory(kernel, capability, dtype, shape, width, **flags)
        found[f"{gpu}: {name}, {dtype}, {width}"] = taken, memory
    # No hungry one, but its branch once changed the type of `seen`, and of `left` where documents are packed.
    gpu, shape = "A100", _tile_shape("statistics of short rows", 64, 64, torch.float16, GPUS["A100"][1])
    for name, absent in (("under a mask", "starts"), ("of packed documents", "seen")):
        taken = shared_memory(solve_kernel, GPUS[gpu][0], "fp16", shape, 64, **{absent: None})
        found[f"{gpu}: solving {name}"] = taken, GPUS[gpu][1]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
