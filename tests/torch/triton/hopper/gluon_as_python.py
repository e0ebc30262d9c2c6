"""Runs a Gluon kernel as Python, as Triton's interpreter runs a Triton kernel: a thread for each partition of warps.

Blocks are tensors, layouts are nothing, shared memory is a list of tensors, and an mbarrier is what PTX says it is: a
phase ends when as many have arrived as it was made for and every announced byte has come. So a kernel that computes the
wrong thing, or waits for ever, does so here too; how fast it is, and what its layouts cost, only a GPU tells.
"""

import threading
from functools import reduce
from types import FunctionType, SimpleNamespace

import torch
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import constexpr
from triton.runtime.jit import JITFunction

PATIENCE = 20  # seconds after which a wait is a deadlock
ATOMIC = threading.Lock()


class Block(torch.Tensor):
    """A tensor that has, like every block of Gluon's, a type with a layout."""

    type = property(lambda self: SimpleNamespace(layout=None))


def block(value, dtype=None):
    return torch.as_tensor(value, dtype=dtype).as_subclass(Block)


class Pointer:
    """Offsets into a flat tensor."""

    def __init__(self, tensor, offset=0):
        self.tensor, self.offset = tensor, offset
        self.dtype = SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, more):
        return Pointer(self.tensor, self.offset + more)

    def load(self, mask=None, other=None):
        if mask is None:
            return block(self.tensor.view(-1)[self.offset])
        found = self.tensor.view(-1)[torch.where(mask, self.offset, 0)]
        return block(torch.where(mask, found, other))

    def store(self, value, mask=None):
        offset, value = torch.broadcast_tensors(torch.as_tensor(self.offset), torch.as_tensor(value))
        if mask is not None:
            mask = mask.expand(offset.shape)
            offset, value = offset[mask], value[mask]
        self.tensor.view(-1)[offset.long()] = value.to(self.tensor.dtype)


class Shared:
    """A piece of shared memory: a tensor, or one of several."""

    def __init__(self, tensor):
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), tensor.dtype

    def index(self, i):
        return Shared(self.tensor[int(i)])

    def reshape(self, shape):
        return Shared(self.tensor.view(shape))

    def permute(self, order):
        return Shared(self.tensor.permute(order))

    def load(self, layout):
        return block(self.tensor.clone())

    def store(self, value):
        self.tensor.copy_(value)


class Barriers:
    """One mbarrier, or several."""

    def __init__(self, many=0):
        self.some, self.shape = [Barriers() for _ in range(many)], (many, 1)
        self.changed, self.phase, self.arrived, self.bytes, self.count = threading.Condition(), 0, 0, 0, 0

    def index(self, i):
        return self.some[int(i)]

    def take(self, arrived=0, announced=0):
        with self.changed:
            self.arrived += arrived
            self.bytes += announced
            if self.arrived == self.count and self.bytes == 0:
                self.phase, self.arrived = self.phase ^ 1, 0
                self.changed.notify_all()

    def wait(self, parity):
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase != int(parity), PATIENCE), "deadlock: nobody arrived"


class Tiles:
    """A tensor (B, H, L, D) as the copy engine sees it: rows before the first and past the last are zeros."""

    def __init__(self, tensor, rows):
        self.tensor, self.rows, self.dtype, self.layout = tensor, rows, tensor.dtype, None
        self.block_type = SimpleNamespace(nbytes=rows * tensor.shape[3] * tensor.element_size())

    def copy(self, place, barrier, shared):
        b, h, row, _ = (int(i) for i in place)
        rows = self.tensor[b, h, max(row, 0) : max(row + self.rows, 0)]
        shared.tensor.zero_()
        shared.tensor.view(self.rows, -1)[max(-row, 0) :][: len(rows)] = rows
        barrier.take(announced=-self.block_type.nbytes)


def _allocate(dtype, shape, layout):
    if layout == "barriers":
        return Barriers(shape[0] if len(shape) > 1 else 0)
    return Shared(torch.full(shape, torch.nan if dtype.is_floating_point else -1, dtype=dtype))


def _either(pick):
    return lambda a, b: pick(block(a), block(b))


def _specialize(functions_and_arguments, warps, registers):
    failures = []

    def run(function, arguments):
        try:
            function(*arguments)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=pair) for pair in functions_and_arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _atomic_add(pointer, value, sem="acq_rel"):
    with ATOMIC:
        before = pointer.load().clone()
        pointer.store(before + value)
    return before


def _language(program, programs):
    """Stand in for gluon.language, as seen by one program, and for the same names of triton.language."""
    return SimpleNamespace(
        constexpr=object, int32=torch.int32, int64=torch.int64, float32=torch.float32, static_range=range,
        program_id=lambda axis: block(program), num_programs=lambda axis: block(programs),
        SliceLayout=lambda *a: None, NVMMADistributedLayout=lambda **k: None, BlockedLayout=lambda *a: None,
        SwizzledSharedLayout=lambda *a: None, DotOperandLayout=lambda *a: None,
        convert_layout=lambda x, layout, assert_trivial=False: x,
        allocate_shared_memory=_allocate, warp_specialize=_specialize,
        arange=lambda low, high, layout=None: block(torch.arange(low, high)), cdiv=lambda a, b: (a + b - 1) // b,
        zeros=lambda shape, dtype, layout: block(torch.zeros(shape, dtype=dtype)),
        full=lambda shape, value, dtype, layout: block(torch.full(shape, value, dtype=dtype)),
        zeros_like=lambda x, dtype=None: torch.zeros_like(x, dtype=dtype), full_like=torch.full_like,
        max=lambda x, axis: reduce(torch.fmax, x.unbind(axis)),
        sum=lambda x, axis: x.sum(axis), maximum=_either(torch.fmax), minimum=_either(torch.fmin),  # past a NaN
        where=lambda m, a, b: torch.where(block(m), a, b),
        load=lambda pointer, mask=None, other=None: pointer.load(mask, other),
        exp2=torch.exp2, log2=torch.log2, floor=torch.floor,
        store=lambda pointer, value, mask=None: pointer.store(value, mask), atomic_add=_atomic_add,
    )  # fmt: skip


def _multiply(a, b, c, use_acc=True, is_async=False):
    product = getattr(a, "tensor", a).float() @ b.tensor.float()
    return block(product + c if use_acc else product)


class Launched:
    """A Gluon kernel whose launch `kernel[grid](...)` runs it as Python: every program, one after another.

    Tensors among the arguments are pointers, and tensor descriptors what the copy engine sees of them.
    """

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        programs, *_ = grid

        def launch(*arguments, num_warps, maxnreg):
            of = zip(arguments, self.kernel.params, strict=True)
            arguments = [a if parameter.is_constexpr else _argument(a) for a, parameter in of]
            for program in range(programs):
                as_python(self.kernel, program, programs)(*arguments)

        return launch


def _argument(given):
    if isinstance(given, TensorDescriptor):
        return Tiles(given.base, given.block_shape[2])
    if isinstance(given, torch.Tensor):
        return Pointer(given)
    return block(given) if isinstance(given, int) else given


def as_python(function, program=0, programs=1):
    """Return a function of Gluon as one of Python, as seen by one program."""
    language = _language(program, programs)
    stand_ins = {
        "gl": language,
        "tl": language,
        "mbarrier": SimpleNamespace(
            MBarrierLayout=lambda: "barriers", init=lambda b, count: setattr(b, "count", count),
            wait=lambda b, phase: b.wait(phase), arrive=lambda b, count: b.take(arrived=count),
            expect=lambda b, n: b.take(arrived=1, announced=n),
        ),
        "tma": SimpleNamespace(async_copy_global_to_shared=lambda tiles, *rest: tiles.copy(*rest)),
        "warpgroup_mma": _multiply,
        "warpgroup_mma_wait": lambda pending, deps: deps[0],
    }  # fmt: skip
    return _as_python(function, stand_ins, {})


def _as_python(kernel, stand_ins, worlds):
    """Return the kernel's function in a world of stand-ins, and so each function that its module has or imports."""
    names = kernel.fn.__globals__
    if id(names) not in worlds:
        world = worlds[id(names)] = names | stand_ins
        for name, function in names.items():
            if isinstance(function, GluonJITFunction | JITFunction):
                world[name] = _as_python(function, stand_ins, worlds)
            elif isinstance(function, constexpr):
                world[name] = function.value
    return FunctionType(kernel.fn.__code__, worlds[id(names)], kernel.fn.__name__, kernel.fn.__defaults__)
