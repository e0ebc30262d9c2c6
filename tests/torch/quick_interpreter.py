"""Triton's interpreter without its repeated work, and with products that do not depend on which factor comes first.

It patches the language anew in every call of a device function: here once per launch. It multiplies by the processor's
BLAS, which on some processors rounds k·q as it does not round q·k. A GPU adds both in the same order, and kernels rely
on it: what is recomputed for a gradient is what was computed before.
"""

import importlib.util
import inspect
import os
from functools import cache

import numpy as np


def quicken():
    """Patch each language module once a launch. What is patched does not depend on the function that calls."""
    if os.environ.get("TRITON_INTERPRET") != "1" or not importlib.util.find_spec("triton"):
        return
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):  # another version's: it works, slowly
        return
    patch, launch, numpy_dtype = interpreter._patch_lang, interpreter.GridExecutor.__call__, interpreter._get_np_dtype
    if getattr(launch, "is_quick", False):
        return
    patched = set()
    languages = (interpreter.tl, interpreter.tl.core)

    @cache
    def languages_of(function):
        return frozenset(m.__name__ for m in function.__globals__.values() if inspect.ismodule(m) and m in languages)

    def patch_once(function):
        if languages_of(function) in patched:
            return interpreter._LangPatchScope()  # nothing to restore
        patched.add(languages_of(function))
        return patch(function)

    def launched(self, *arguments, **options):
        patched.clear()
        return launch(self, *arguments, **options)

    known = {}

    def numpy_dtype_of(kind):
        scalar = kind.scalar  # of a block, its elements' type
        if scalar.name not in known:
            known[scalar.name] = numpy_dtype(scalar)
        return known[scalar.name]

    builder = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def rounded_once(self, a, b, d, *options):
        if any(x.dtype.primitive_bitwidth == 8 for x in (a, b)) or d.data.dtype != np.float32:
            return multiply(self, a, b, d, *options)
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(np.float32)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    launched.is_quick = True
    builder.create_dot = rounded_once
    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launched
    interpreter._get_np_dtype = numpy_dtype_of
